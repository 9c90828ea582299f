"""The cost of a run: against PyTorch's counter, summed over sessions, unknown where unmeasured."""

import logging
import multiprocessing
import os
import re
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from asr.config import Config
from asr.errors import BundleError
from asr.model.flops import operations_of_step
from asr.reporting.cost import Cost, read_cost, write_cost
from asr.runtime.processes import process_pool
from asr.train import energy as metering
from asr.train.run import train
from tests.helpers import read_card, tones_recipe


@pytest.mark.parametrize(
    "changes",
    [{}, {"projection": {"kind": "dense"}, "ctc_weight": 0.0}, {"d_inner": 256, "norm": "post"}],
)
@pytest.mark.parametrize("shape", [(3, 133, 7), (2, 310, 21), (1, 601, 2)])
def test_operations_are_those_that_pytorch_counts(tmp_path: Path, changes, shape) -> None:
    """The first batch of an octave of lengths is counted, the others scaled by their frames."""
    values = tones_recipe(tmp_path, model=changes, decoding={"ctc_weight": 0.0})
    config = Config.model_validate(values)
    model = config.model.build(20, 50)
    utterances, frames, tokens = shape
    feats_BTF, tokens_BU = (
        torch.randn(utterances, frames, 20),
        torch.ones(utterances, tokens).long(),
    )
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits, ctc, _ = model(feats_BTF, torch.tensor([frames] * utterances), tokens_BU)
        loss = logits.logsumexp(-1).sum() + (0 if ctc is None else ctc.logsumexp(-1).sum())
        loss.backward()
    counted = operations_of_step(model, 20)(*shape)
    assert counted == pytest.approx(counter.get_total_flops(), rel=1e-9)
    estimate = operations_of_step(model, 20)
    estimate(utterances, 1 << (frames.bit_length() - 1), max(1, tokens // 2))
    assert estimate(*shape) == pytest.approx(counted, rel=0.15)


def test_counting_changes_neither_the_network_nor_the_random_state(tmp_path: Path) -> None:
    model = Config.model_validate(tones_recipe(tmp_path)).model.build(20, 50)
    before, rng = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    operations_of_step(model, 20)(2, 50, 5)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_what_is_unknown_of_one_session_is_unknown_of_the_run() -> None:
    known = Cost(
        seconds=60, operations=1e9, energy_kwh=0.5, metered_kwh=0.2, co2_kg=0.1, grid="CHN"
    )
    assert (known + known).energy_kwh == 1.0 and (known + known).seconds == 120
    assert Cost() + known == known
    assert known.facts()["processor time of training"] == "unknown"
    half = known.model_copy(update={"core_seconds": 30.0})
    assert (half + half).facts()["processor time of training"] == "1.0 core min"
    assert (half + known).core_seconds is None
    blind = Cost(seconds=30, operations=1e9, energy_kwh=None, metered_kwh=None, co2_kg=None)
    for both in (known + blind, blind + known):
        assert both.energy_kwh is None and both.co2_kg is None and both.seconds == 90
        assert both.facts()["energy of training"] == both.facts()["CO2 of training"] == "unknown"
    assert known.facts()["energy of training"] == "0.5 kWh (40% metered, the rest estimated)"
    guessed = known.model_copy(update={"metered_kwh": 0.0})
    assert guessed.facts()["energy of training"] == "0.5 kWh (estimated, no meter)"
    assert known.facts()["CO2 of training"] == "0.1 kg (electricity of CHN)"
    assert known.facts()["training time"] == "1.0 min"


def test_a_damaged_cost_is_named(tmp_path: Path) -> None:
    assert read_cost(tmp_path) is None
    write_cost(tmp_path, Cost(seconds=1.5))
    assert read_cost(tmp_path) == Cost(seconds=1.5)
    for bad in ("", '{"seconds": -1}', '{"kwh": 3}'):
        (tmp_path / "cost.json").write_text(bad)
        with pytest.raises(BundleError, match=r"cost\.json: not a run's cost"):
            read_cost(tmp_path)


def recipe(tones: Path, epochs: int) -> Config:
    return Config.model_validate(tones_recipe(tones, training={"epochs": epochs}))


@pytest.mark.costly
def test_a_resumed_run_adds_its_sessions_up(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    def no_network(*args):
        raise AssertionError(f"connects to {args}")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.chdir(tmp_path)
    at_once = read_cost(train(recipe(tones, 2), tmp_path / "at_once"))
    first = read_cost(train(recipe(tones, 1), tmp_path / "run"))
    both = read_cost(train(recipe(tones, 2), tmp_path / "run", resume=True))
    assert first and both and at_once
    assert both.operations == pytest.approx(at_once.operations, rel=0.05)
    assert 0 < first.operations < both.operations and 0 < first.seconds < both.seconds
    assert first.core_seconds and both.core_seconds and both.core_seconds > first.core_seconds > 0
    assert first.core_seconds <= 1.1 * (os.cpu_count() or 1) * first.seconds
    assert first.energy_kwh and both.energy_kwh and both.energy_kwh > first.energy_kwh > 0
    assert both.co2_kg and both.co2_kg > 0 and both.grid == "the world's mean"
    assert both.metered_kwh is not None and 0 <= both.metered_kwh <= both.energy_kwh
    card = read_card(tmp_path / "run")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in card.splitlines()]
    assert all([name, value] in rows for name, value in both.facts().items())
    # codecarbon left nothing behind and said nothing.
    assert {p.name for p in tmp_path.iterdir()} == {"at_once", "run"}
    assert "codecarbon" not in "".join(capfd.readouterr())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_time_of_running_readers_is_in_a_saved_state_and_counted_once() -> None:
    context = multiprocessing.get_context("spawn")
    before = metering._core_seconds()
    with process_pool(2, context) as pool:
        list(pool.map(exec, ["import time\nwhile time.process_time() < 1: pass"] * 2))
        running = metering._core_seconds()
    assert 1.9 < running - before < 6, "clock ticks are hundredths"
    assert 0 <= metering._core_seconds() - running < 1


def test_energy_is_unknown_without_a_meter(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "codecarbon", None)  # as if it were not installed
    cost = read_cost(train(recipe(tones, 1), tmp_path / "run"))
    assert cost and cost.energy_kwh is None and cost.co2_kg is None and cost.metered_kwh is None
    assert cost.operations > 0
    card = read_card(tmp_path / "run")
    for name in ("energy", "CO2"):
        assert re.search(rf"\| {name} of training +\| unknown +\|", card)


def test_a_tracker_that_fails_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import codecarbon

    def broken(*args, **kwargs):
        raise RuntimeError("no such sensor")

    monkeypatch.setattr(codecarbon, "OfflineEmissionsTracker", broken)
    assert metering.Energy.of("process") is None


def test_only_a_processor_with_a_counter_is_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    from codecarbon.external.hardware import CPU

    with_counter = CPU.__new__(CPU)
    with_counter._mode = "intel_rapl"
    energy = metering.Energy.of("process")
    assert energy is not None
    for hardware, is_metered in (([], False), ([with_counter], True)):
        monkeypatch.setattr(energy.tracker, "flush", lambda: None)
        monkeypatch.setattr(energy.tracker, "_hardware", hardware)
        reading = type("Reading", (), {})()
        reading.cpu_energy, reading.gpu_energy, reading.energy_consumed = 3.0, 4.0, 9.0
        reading.emissions, reading.country_iso_code = 2.0, "CHN"
        energy.reading.total = reading
        assert energy.read() == {
            "energy_kwh": 9.0, "metered_kwh": 7.0 if is_metered else 4.0, "co2_kg": 2.0,
            "grid": "CHN",
        }  # fmt: skip
    energy.stop()
    assert logging.getLogger("codecarbon").level == logging.CRITICAL
