"""What the front counts, as Prometheus reads it."""

from evenq.serving.front.front_metrics import front_metrics
from evenq.serving.http2.limits import Totals
from evenq.serving.program.metrics import exposition


def test_the_totals_of_all_doors_are_added_up() -> None:
    doors = [
        Totals(connections=2, unread_bytes=7, stalled=1, untaken=2, reached={"stall_ms": 1}),
        Totals(connections=3, faults={"ENHANCE_YOUR_CALM": 4}),
    ]
    text = exposition(front_metrics(lambda: doors)).decode()
    assert "evenq_front_connections 5.0" in text
    assert "evenq_front_unread_bytes 7.0" in text
    assert 'evenq_front_refused_total{what="stalled"} 1.0' in text
    assert 'evenq_front_faults_total{code="ENHANCE_YOUR_CALM"} 4.0' in text
    assert "evenq_front_untaken_total 2.0" in text
    assert 'evenq_front_limits_total{limit="stall_ms"} 1.0' in text
    assert "late_requests" not in text


def test_a_server_on_the_other_front_has_no_such_series() -> None:
    text = exposition(front_metrics(list)).decode()
    assert not [line for line in text.splitlines() if line.startswith("evenq_front_")]
