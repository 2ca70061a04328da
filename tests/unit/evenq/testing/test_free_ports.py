"""Reserving ports."""

import socket

from evenq.testing.free_ports import FreePorts, port_is_free


def test_two_reservations_never_share_a_port():
    with FreePorts() as mine, FreePorts() as yours:
        ports = [mine.take() for _ in range(20)] + [yours.take() for _ in range(20)]
    assert len(set(ports)) == 40
    assert all(20_000 <= port < 32_000 for port in ports)


def test_a_port_in_use_is_not_handed_out():
    with FreePorts() as ports, socket.socket() as taken:
        port = ports.take()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not port_is_free(port)
        ports.close()
        with FreePorts() as others:
            assert others.take() != port


def test_neighbours_are_reserved_together():
    with FreePorts() as mine, FreePorts() as yours:
        first = mine.take(3)
        taken = {yours.take() for _ in range(6)}
        assert not taken & set(range(first, first + 3))
        single = yours.take()
        again = mine.take(2)
        assert single not in {again, again + 1}
