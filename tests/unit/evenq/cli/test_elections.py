"""With several access points a command waits for the first that is served, with one it does not."""

import socket
import threading
import time

from evenq.cli.elections import await_election
from evenq.testing.free_ports import FreePorts


def test_it_waits_until_one_of_several_listens_and_says_so_once(capsys):
    with FreePorts() as ports:
        first, second = ports.take(), ports.take()
        opened = []
        thread = threading.Timer(0.7, lambda: opened.append(socket.create_server(("127.0.0.1", second))))
        thread.start()
        try:
            await_election(f"127.0.0.1:{first};127.0.0.1:{second}", within_s=60)
            assert opened
        finally:
            thread.join()
            for one in opened:
                one.close()
        said = capsys.readouterr().err
        assert said.count("waiting up to 60 s for another copy to lead") == 1


def test_it_gives_up_in_time_and_leaves_the_error_to_the_command():
    with FreePorts() as ports:
        first, second = ports.take(), ports.take()
        await_election(f"127.0.0.1:{first};127.0.0.1:{second}", within_s=0.5)


def test_a_single_access_point_is_not_waited_for(capsys):
    with FreePorts() as ports:
        only = ports.take()
        began = time.monotonic()
        await_election(f"127.0.0.1:{only}", within_s=60)
        assert time.monotonic() - began < 30
        assert capsys.readouterr().err == ""
