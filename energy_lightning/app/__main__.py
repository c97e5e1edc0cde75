"""`python -m energy_lightning.app`, for torchrun and for places without the script."""

import sys

from energy_lightning.app.commands import main

sys.exit(main())
