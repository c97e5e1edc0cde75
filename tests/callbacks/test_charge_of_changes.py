"""What plans pay for changes of the clock, against what a change beside the running work costs."""

from __future__ import annotations

import itertools

import pytest

from energy_lightning.callbacks.spaces import useful_frequencies
from energy_lightning.emulation import GPU, emulate_phase
from energy_lightning.frontier import PartOption, PartProfile, compose_iteration
from energy_lightning.types import PhasePlan
from energy_lightning.workload import Workload

SWITCH_S = 0.01
LLAMA = Workload.preset("llama3.2_3b_tp8", microbatch_size=8, sequence_length=4096)
NEW_GPUS = ("a100-sxm4-40gb", "a100-pcie-80gb", "a40", "h100-sxm", "h200-sxm")


def charge(gpu: GPU) -> tuple[float, float]:
    """(s, J) that a plan with two clocks pays in a microbatch."""
    options = (PartOption(1000, None, 1.0, 100.0), PartOption(900, None, 1.0, 90.0))
    parts = [
        PartProfile("forward", "fwd", None, 1, options[:1]),
        PartProfile("backward", "bwd", None, 1, options[1:]),
    ]
    (point,) = compose_iteration(parts, num_microbatches=1, static_power_w=gpu.static_power_w, switch_time_s=SWITCH_S)
    return point.time_s - 2.0, point.energy_j - 190.0


@pytest.mark.parametrize("name", NEW_GPUS)
def test_the_charge_covers_phases_that_begin_at_the_other_phases_clock(name: str) -> None:
    """For SWITCH_S either phase runs at the clock of the other: the same work at another speed and power."""
    gpu = GPU.load(name)
    clocks_mhz = useful_frequencies(gpu.frequencies_mhz)[::4]
    known = {
        (phase, clock): emulate_phase(LLAMA, gpu, PhasePlan(phase, clock))
        for phase in ("forward", "backward")
        for clock in clocks_mhz
    }
    charged_s, charged_j = charge(gpu)
    for forward_mhz, backward_mhz in itertools.permutations(clocks_mhz, 2):
        lost_s = lost_j = 0.0
        for own, other in (
            (known["forward", forward_mhz], known["forward", backward_mhz]),
            (known["backward", backward_mhz], known["backward", forward_mhz]),
        ):
            done = SWITCH_S / other.time_s  # share of the phase
            lost_s += SWITCH_S - done * own.time_s
            lost_j += SWITCH_S * other.power_w - done * own.energy_j
        assert lost_s < 0.1 * charged_s
        assert lost_j < 0.5 * charged_j
