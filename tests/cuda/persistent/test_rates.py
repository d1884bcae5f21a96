"""Rates: what was fitted for exchanges keeps their order."""

from __future__ import annotations

from tvm_rnn.cuda.persistent.exchange import CLUSTER, COUNTER
from tvm_rnn.cuda.persistent.exchange_by_polling import POLLING
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, SHARED_BYTES_PER_CYCLE, Rates


def test_a_cluster_is_nearer_than_l2_and_polling_quicker_than_a_counter() -> None:
    rates: list[Rates] = [CLUSTER.rates, POLLING.rates, COUNTER.rates]
    assert [r.exchange for r in rates] == sorted(r.exchange for r in rates)
    assert CLUSTER.rates.per_cta > 0 == COUNTER.rates.per_cta
    assert CLOCK_MHZ > 0 and SHARED_BYTES_PER_CYCLE > 0
