"""Train a Llama on Shakespeare with a LightningModule of your own; only the strategy is ours.

python examples/finetune_llama.py                                      # a small one on the CPU, emulated GPU
python examples/finetune_llama.py --devices 8 --tensor-parallel 8 --pretrained meta-llama/Llama-3.2-3B   # GPUs
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from energy_lightning import KareusStrategy
from energy_lightning.tasks.data import NextTokenData
from energy_lightning.tasks.sources import Shakespeare

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


class Llama(LightningModule):
    def __init__(self, pretrained: str | None) -> None:
        super().__init__()
        config = LlamaConfig(vocab_size=259, intermediate_size=344, **SMALL)
        self.model = AutoModelForCausalLM.from_pretrained(pretrained) if pretrained else LlamaForCausalLM(config)
        self.model.train()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-5 if self.model.config.hidden_size > 128 else 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", help="a folder or hub name; default: a small Llama with random weights")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--budget", default="max_throughput", help="max_throughput, min_energy, max_slowdown=0.05, ...")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--output-dir", default="outputs/finetune_llama")
    args = parser.parse_args()

    strategy = KareusStrategy(args.budget, tensor_parallel_size=args.tensor_parallel, output_dir=args.output_dir)
    data = NextTokenData(Shakespeare(), args.pretrained or "bytes", max_length=128, batch_size=8)
    trainer = Trainer(strategy=strategy, devices=args.devices, max_steps=args.max_steps, limit_val_batches=0)
    trainer.fit(Llama(args.pretrained), data)


if __name__ == "__main__":
    main()
