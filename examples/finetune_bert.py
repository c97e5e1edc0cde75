"""Fine-tune BERT to tell good movie reviews from bad ones, for less energy.

python examples/finetune_bert.py                                       # CPU, emulated GPU
python examples/finetune_bert.py --devices 4 --tensor-parallel 2 --pretrained bert-large-uncased   # GPUs
"""

import argparse

from lightning.pytorch import Trainer

from energy_lightning import KareusStrategy
from energy_lightning.tasks.data import ClassificationData
from energy_lightning.tasks.models import ModelSpec, build_model
from energy_lightning.tasks.modules import TextClassifier
from energy_lightning.tasks.sources import MovieReviews


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrained", default="minilm", help="a folder, a hub name, or minilm (comes as a package)")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument(
        "--max-slowdown", type=float, default=0.05, help="of the time, at most this much for less energy"
    )
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--output-dir", default="outputs/finetune_bert")
    args = parser.parse_args()

    spec = ModelSpec("classification", pretrained=args.pretrained)
    model = TextClassifier(build_model(spec, tokenizer=args.pretrained), learning_rate=5e-5, warmup_steps=20)
    data = ClassificationData(MovieReviews(), args.pretrained, max_length=64, batch_size=args.batch_size)
    trainer = Trainer(
        strategy=KareusStrategy(
            {"max_slowdown": args.max_slowdown},
            tensor_parallel_size=args.tensor_parallel,
            output_dir=args.output_dir,
        ),
        devices=args.devices,
        max_epochs=1,
        max_steps=args.max_steps,
        limit_val_batches=8 if args.max_steps > 0 else None,
        default_root_dir=args.output_dir,
    )
    trainer.fit(model, data)
    trainer.validate(model, data)
    trainer.print(f"Plan and measurements: {args.output_dir}")


if __name__ == "__main__":
    main()
