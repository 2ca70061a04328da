"""Which queues a route lets read and write (RT-3, RT-8)."""

from evenq.model import BrokerAddress, MessageType, Permission, QueueCounts, TopicRoute


def counts(name, read, write, permission):
    return QueueCounts(
        broker_name=name, read_queues=read, write_queues=write, permission=permission, message_type=MessageType.NORMAL
    )


def test_read_and_write_counts_and_permissions_count_apart():
    queues = (
        counts("a", 3, 1, Permission.READ_WRITE),
        counts("b", 2, 2, Permission.READ),
        counts("c", 1, 2, Permission.WRITE),
        counts("d", 5, 5, Permission.NONE),
    )
    route = TopicRoute(topic="t", version=1, queues=queues, brokers=())
    assert [str(queue) for queue in route.readable()] == ["t@a:0", "t@a:1", "t@a:2", "t@b:0", "t@b:1"]
    assert [str(queue) for queue in route.writable()] == ["t@a:0", "t@c:0", "t@c:1"]


def test_an_address_is_what_a_channel_takes():
    assert BrokerAddress("default", "host", 80).target == "host:80"
    assert BrokerAddress("default", "::1", 80).target == "[::1]:80"


def test_an_address_says_in_front_that_it_is_called_with_tls():
    assert BrokerAddress("default", "host", 80).address == "host:80"
    assert BrokerAddress("tls", "::1", 80, tls=True).address == "evenqs://[::1]:80"
