"""The architectures whose blocks the engine knows: a name -> row dict, open to rows from outside."""

from energy_lightning.partition.architectures.base import Architecture
from energy_lightning.partition.architectures.bert import BERT
from energy_lightning.partition.architectures.llama import LLAMA

ARCHITECTURES: dict[str, Architecture] = {row.name: row for row in (BERT, LLAMA)}

__all__ = ["ARCHITECTURES", "Architecture"]
