"""What this machine is called, by Linux and by compilers, and how many CPUs there are for this process."""

from __future__ import annotations

import os

import pytest

from tvm_rnn import this_machine


@pytest.mark.parametrize(
    ("platform", "said", "machine", "system"),
    [
        ("linux", "x86_64", "x86_64", "x86_64-linux-gnu"),
        ("linux", "aarch64", "aarch64", "aarch64-linux-gnu"),
        ("darwin", "arm64", "aarch64", "aarch64-macos"),
    ],
)
def test_its_names(platform: str, said: str, machine: str, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine.platform, "machine", lambda: said)
    monkeypatch.setattr(this_machine.sys, "platform", platform)
    assert (this_machine.machine(), this_machine.system()) == (machine, system)


def test_a_system_that_does_not_tell_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_machine.cpus() >= 1
    monkeypatch.delattr(this_machine.os, "sched_getaffinity")
    assert this_machine.cpus() == os.cpu_count()
