"""The promises about allocate strategies, semantics.md section 11 (AL-1 to AL-35) and XO-8, XO-14."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.allocation import (
    Averagely,
    ByCircle,
    Config,
    ConsistentHash,
    MachineRoom,
    Nearby,
    absence,
    by_name,
    coverage,
    divide,
    room_of_broker,
    verified,
)
from evenq.allocation.consistent_hash import md5_hash, queue_text
from evenq.client.pull_consumer import PullConsumer
from evenq.client.push_consumer import PushConsumer
from evenq.errors import BadRequest
from evenq.model import MessageQueue

CHECKED = [Averagely(), ByCircle(), Nearby(), ConsistentHash()]


def q(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue("T", broker, index) for index in range(count)]


def c(count: int) -> list[str]:
    return [f"c{index:03}" for index in range(1, count + 1)]


def numbers(strategy, queues, ids):
    """What each member gets, as 1-based positions in the sorted queues."""
    place = {queue: index for index, queue in enumerate(queues, 1)}
    return [[place[queue] for queue in strategy.allocate("g", own, queues, ids)] for own in ids]


# --- common


def test_al_1_a_strategy_is_a_function_of_group_own_id_queues_and_ids_with_a_name_averagely_by_default() -> None:
    six = [Averagely(), ByCircle(), Config(tuple(q(1))), MachineRoom(frozenset({"r"})), Nearby(), ConsistentHash()]
    assert [strategy.name for strategy in six] == [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONFIG",
        "MACHINE_ROOM",
        "MACHINE_ROOM_NEARBY-AVG",
        "CONSISTENT_HASH",
    ]
    for strategy in six:
        queues = q(3, "r@b")
        first = strategy.allocate("g", "r@c1", queues, ["r@c1", "r@c2"])
        assert isinstance(first, list)
        assert strategy.allocate("another group", "r@c1", queues, ["r@c1", "r@c2"]) == first
        assert queues == q(3, "r@b")
    for consumer in (PullConsumer, PushConsumer):
        assert inspect.signature(consumer).parameters["strategy"].default == "AVG"


def test_al_1_users_may_supply_their_own_strategy() -> None:
    class Last:
        """All queues for the last member."""

        name = "LAST"

        def allocate(self, group, own_id, queues, ids):
            return list(queues) if own_id == ids[-1] else []

    assert divide(Last(), "g", q(2), c(2)) == {"c001": [], "c002": q(2)}


@pytest.mark.parametrize("strategy", CHECKED, ids=lambda s: s.name)
def test_al_2_arguments_are_checked_in_order_own_id_then_queues_then_ids(strategy) -> None:
    with pytest.raises(BadRequest, match=r"^currentCID is empty"):
        strategy.allocate("g", "", [], [])
    with pytest.raises(BadRequest, match=r"^mqAll is null or mqAll empty"):
        strategy.allocate("g", "c1", [], [])
    with pytest.raises(BadRequest, match=r"^cidAll is null or cidAll empty"):
        strategy.allocate("g", "c1", q(1), [])
    with pytest.raises(BadRequest, match=r"^currentCID is empty"):
        strategy.allocate("g", None, None, None)
    with pytest.raises(BadRequest, match=r"^mqAll is null or mqAll empty"):
        strategy.allocate("g", "c1", None, None)
    with pytest.raises(BadRequest, match=r"^cidAll is null or cidAll empty"):
        strategy.allocate("g", "c1", q(1), None)


@pytest.mark.parametrize("strategy", CHECKED, ids=lambda s: s.name)
def test_al_2_the_division_for_a_whole_group_makes_the_same_checks(strategy) -> None:
    with pytest.raises(BadRequest, match=r"^currentCID is empty"):
        divide(strategy, "g", [], [""])
    with pytest.raises(BadRequest, match=r"^mqAll is null or mqAll empty"):
        divide(strategy, "g", [], ["c1"])


@pytest.mark.parametrize("strategy", CHECKED, ids=lambda s: s.name)
def test_al_3_a_member_that_is_not_in_the_list_gets_nothing_and_a_log_line(strategy) -> None:
    assert strategy.allocate("g", "stranger", q(3, "r@b"), ["r@c1"]) == []
    line = absence("g", "stranger", ["c1"])
    assert line is not None
    assert all(word in line for word in ("'g'", "'stranger'", "['c1']"))
    assert absence("g", "c1", ["c1"]) is None


@pytest.mark.parametrize("strategy", [Averagely(), ByCircle(), MachineRoom(frozenset({"r"}))], ids=lambda s: s.name)
def test_al_4_each_queue_once_and_sizes_within_one_for_1_to_39_queues_and_members(strategy) -> None:
    for queue_count in range(1, 40):
        queues = q(queue_count, "r@b")
        for member_count in range(1, 40):
            shares = divide(strategy, "g", queues, c(member_count))
            given_out = [queue for share in shares.values() for queue in share]
            assert sorted(given_out) == queues
            sizes = [len(share) for share in shares.values()]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "strategy",
    [*CHECKED, Nearby(together=True), MachineRoom(frozenset({"r1", "r3"}))],
    ids=["AVG", "AVG_BY_CIRCLE", "NEARBY", "CONSISTENT_HASH", "NEARBY-together", "MACHINE_ROOM"],
)
@pytest.mark.spec("AL-5", "AL-11", "AL-17", "AL-23", "AL-27", "AL-30")
def test_al_1_one_division_for_the_whole_group_gives_each_member_what_it_computes_for_itself(strategy) -> None:
    """In the same order, too: servers divide for all at once, members for themselves."""
    queues = [MessageQueue("T", f"r{room}@b", index) for room in range(1, 6) for index in range(room)]
    ids = ["r1@a", "r1@b", "r3@c", "r9@d"]
    each = {own: strategy.allocate("g", own, queues, ids) for own in ids}
    assert divide(strategy, "g", queues, ids) == strategy.divide("g", queues, ids) == each


# --- averagely


@pytest.mark.parametrize(
    ("queue_count", "member_count", "expected"),
    [
        pytest.param(8, 3, [[1, 2, 3], [4, 5, 6], [7, 8]], id="AL-7"),
        pytest.param(5, 3, [[1, 2], [3, 4], [5]], id="AL-8"),
        pytest.param(3, 5, [[1], [2], [3], [], []], id="AL-9"),
        pytest.param(4, 4, [[1], [2], [3], [4]], id="AL-10-4-4"),
        pytest.param(10, 4, [[1, 2, 3], [4, 5, 6], [7, 8], [9, 10]], id="AL-10-10-4"),
        pytest.param(16, 5, [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16]], id="AL-10-16-5"),
        pytest.param(7, 2, [[1, 2, 3, 4], [5, 6, 7]], id="AL-10-7-2"),
        pytest.param(1, 3, [[1], [], []], id="AL-10-1-3"),
    ],
)
@pytest.mark.spec("AL-7", "AL-8", "AL-9", "AL-10")
def test_al_6_to_al_10_averagely_gives_pages(queue_count, member_count, expected) -> None:
    """AL-6, AL-7, AL-8, AL-9, AL-10: the worked examples."""
    assert numbers(Averagely(), q(queue_count), c(member_count)) == expected


def test_al_5_averagely_is_the_formula() -> None:
    for queue_count in range(1, 30):
        queues = q(queue_count)
        for member_count in range(1, 30):
            for i, own in enumerate(c(member_count)):
                m = queue_count % member_count
                if queue_count <= member_count:
                    size = 1
                elif m > 0 and i < m:
                    size = queue_count // member_count + 1
                else:
                    size = queue_count // member_count
                start = i * size if m > 0 and i < m else i * size + m
                count = max(0, min(size, queue_count - start))
                expected = [queues[(start + k) % queue_count] for k in range(count)]
                assert Averagely().allocate("g", own, queues, c(member_count)) == expected


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 200), st.integers(1, 60), st.sampled_from([Averagely(), ByCircle(), MachineRoom(frozenset({"r"}))])
)
def test_al_4_each_queue_once_and_sizes_within_one_for_any_counts(queue_count, member_count, strategy) -> None:
    queues = q(queue_count, "r@b")
    shares = divide(strategy, "g", queues, c(member_count))
    assert coverage(queues, shares).complete
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert verified(shares, queues, c(member_count)) == shares


def test_al_9_members_beyond_the_queue_count_are_reported_idle() -> None:
    shares = divide(Averagely(), "g", q(3), c(5))
    assert coverage(q(3), shares).idle == ("c004", "c005")


# --- by circle


@pytest.mark.parametrize(
    ("queue_count", "member_count", "expected"),
    [
        (8, 3, [[1, 4, 7], [2, 5, 8], [3, 6]]),
        (5, 3, [[1, 4], [2, 5], [3]]),
        (3, 5, [[1], [2], [3], [], []]),
    ],
)
def test_al_11_al_12_by_circle_deals_like_cards(queue_count, member_count, expected) -> None:
    assert numbers(ByCircle(), q(queue_count), c(member_count)) == expected


def test_al_11_by_circle_gives_every_cth_queue_from_the_members_own_place_on() -> None:
    for queue_count in range(1, 30):
        for member_count in range(1, 30):
            for i, own in enumerate(c(member_count)):
                expected = [queue for j, queue in enumerate(q(queue_count)) if j >= i and j % member_count == i]
                assert ByCircle().allocate("g", own, q(queue_count), c(member_count)) == expected


# --- config


def test_al_13_config_returns_the_users_list_whatever_the_arguments() -> None:
    mine = (MessageQueue("T", "b", 3), MessageQueue("T", "b", 9))
    assert Config(mine).allocate("", "", [], []) == list(mine)
    assert by_name("CONFIG", queues=mine).allocate("g", "x", q(2), ["c1"]) == list(mine)


def test_al_14_overlaps_and_queues_that_do_not_exist_are_told() -> None:
    nowhere = MessageQueue("T", "b", 99)
    seen = coverage(q(3), {"c1": [q(3)[0], nowhere], "c2": [q(3)[0], q(3)[1]]})
    assert seen.shared == (q(3)[0],)
    assert seen.nonexistent == (nowhere,)
    assert seen.unowned == (q(3)[2],)
    assert not seen.complete


# --- machine room


@pytest.mark.parametrize(
    ("name", "room"),
    [("room@name", "room"), ("room@", None), ("@b", ""), ("a@b@c", None), ("plain", None), ("a@b@", "a"), ("@", None)],
)
def test_al_15_al_19_the_room_is_the_first_of_exactly_two_parts(name, room) -> None:
    assert room_of_broker(name) == room


def test_al_15_only_queues_of_configured_rooms_take_part() -> None:
    queues = sorted([*q(2, "r1@a"), *q(2, "r2@a"), *q(2, "plain"), *q(2, "r1@"), *q(2, "r1@a@b")])
    assert MachineRoom(frozenset({"r1"})).allocate("g", "c1", queues, ["c1"]) == q(2, "r1@a")
    nameless = sorted([*q(2, "@b"), *q(2, "plain"), *q(2, "r1@"), *q(2, "@"), *q(2, "@a@b"), *q(2, "r1@a")])
    assert MachineRoom(frozenset({""})).allocate("g", "c1", nameless, ["c1"]) == q(2, "@b")
    assert MachineRoom(frozenset({"r1"})).allocate("g", "c1", q(2, "@b"), ["c1"]) == []


def test_al_16_own_id_not_in_the_ids_or_empty_gives_nothing_without_an_error() -> None:
    assert MachineRoom(frozenset({"r"})).allocate("g", "x", q(2, "r@b"), ["c1"]) == []
    assert MachineRoom(frozenset({"r"})).allocate("g", "", [], []) == []


@pytest.mark.parametrize(
    ("queue_count", "member_count", "expected"),
    [
        (8, 3, [[1, 2, 7], [3, 4, 8], [5, 6]]),
        (5, 3, [[1, 4], [2, 5], [3]]),
        (3, 5, [[1], [2], [3], [], []]),
        (0, 3, [[], [], []]),
    ],
)
def test_al_17_al_18_the_remainder_comes_from_the_tail(queue_count, member_count, expected) -> None:
    assert numbers(MachineRoom(frozenset({"r"})), q(queue_count, "r@b"), c(member_count)) == expected


def test_al_15_to_al_20_two_of_three_rooms_are_divided_among_all_members() -> None:
    """AL-15, AL-17, AL-20: the example of three rooms."""
    queues = [*q(4, "r1@b"), *q(4, "r2@b"), *q(4, "r3@b")]
    two = MachineRoom(frozenset({"r1", "r2"}))
    assert numbers(two, queues, c(3)) == [[1, 2, 7], [3, 4, 8], [5, 6]]


def test_al_20_queues_of_a_room_outside_the_set_go_to_nobody_and_the_room_is_told() -> None:
    queues = [*q(2, "r1@b"), *q(2, "r2@b"), *q(2, "r3@b")]
    shares = divide(MachineRoom(frozenset({"r1", "r2"})), "g", queues, ["c1", "c2"])
    assert sorted(shares["c1"] + shares["c2"]) == queues[:4]
    seen = coverage(queues, shares)
    assert seen.unowned == tuple(queues[4:])
    assert seen.uncovered_rooms == ("r3",)


# --- nearby


THREE_ROOMS = [*q(4, "r1@b"), *q(4, "r2@b"), *q(4, "r3@b")]


@pytest.mark.spec("AL-23", "AL-24", "AL-25")
def test_al_21_to_al_25_a_room_keeps_its_queues_and_unattended_rooms_are_shared() -> None:
    """AL-21, AL-23, AL-24, AL-25: the example of three rooms, whose step 2 always runs."""
    assert numbers(Nearby(), THREE_ROOMS, ["r1@a", "r1@b", "r3@c"]) == [
        [1, 2, 5, 6],
        [3, 4, 7],
        [9, 10, 11, 12, 8],
    ]


def test_al_21_inner_strategy_and_resolver_are_the_users() -> None:
    class Even:
        """Even queue ids in room e, odd ones in o; clients say it by their first letter."""

        def room_of_queue(self, queue: MessageQueue) -> str:
            return "o" if queue.queue_id % 2 else "e"

        def room_of_client(self, client_id: str) -> str:
            return client_id[0]

    assert numbers(Nearby(ByCircle(), Even()), q(8), ["e1", "e2", "o1"]) == [[1, 5], [3, 7], [2, 4, 6, 8]]


def test_al_24_unattended_rooms_are_shared_by_members_whose_own_room_has_queues() -> None:
    queues = [*q(2, "r1@b"), *q(2, "r2@b")]
    assert numbers(Nearby(), queues, ["r1@a", "r1@b"]) == [[1, 3], [2, 4]]


def test_al_26_a_member_whose_room_has_no_queues_gets_only_unattended_ones() -> None:
    class Rooms:
        """r1: a, r3: c, r4: b."""

        def room_of_queue(self, queue: MessageQueue) -> str:
            return queue.broker_name[:2]

        def room_of_client(self, client_id: str) -> str:
            return {"a": "r1", "b": "r4", "c": "r3"}[client_id]

    strategy = Nearby(Averagely(), Rooms())
    assert numbers(strategy, THREE_ROOMS, ["a", "b", "c"]) == [[1, 2, 3, 4, 5, 6], [7], [9, 10, 11, 12, 8]]
    attended = [*q(4, "r1@b"), *q(4, "r3@b")]
    assert strategy.allocate("g", "b", attended, ["a", "b", "c"]) == []


def test_al_22_a_queue_or_member_without_a_room_is_an_error_that_names_it() -> None:
    with pytest.raises(BadRequest, match=r"^Machine room is null for mq T@plain:0"):
        Nearby().allocate("g", "r@a", q(1, "plain"), ["r@a"])
    with pytest.raises(BadRequest, match=r"^Machine room is null for consumer id nobody"):
        Nearby().allocate("g", "r@a", q(1, "r@b"), ["r@a", "nobody"])
    assert Nearby().allocate("g", "r@x", q(1, "plain"), ["nobody"]) == []  # AL-3 comes first


@pytest.mark.parametrize("unknown", [None, ""])
def test_al_22_a_resolver_may_answer_neither_null_nor_an_empty_room(unknown) -> None:
    class Rooms:
        """All are in room r, but queue 1 and client c."""

        def room_of_queue(self, queue: MessageQueue) -> str | None:
            return unknown if queue.queue_id == 1 else "r"

        def room_of_client(self, client_id: str) -> str | None:
            return unknown if client_id == "c" else "r"

    for ask in (lambda queues, ids: Nearby(resolver=Rooms()).allocate("g", "a", queues, ids),
                lambda queues, ids: divide(Nearby(resolver=Rooms()), "g", queues, ids)):  # fmt: skip
        with pytest.raises(BadRequest, match=r"^Machine room is null for mq T@b:1"):
            ask(q(2), ["a", "c"])
        with pytest.raises(BadRequest, match=r"^Machine room is null for consumer id c"):
            ask(q(1), ["a", "c"])


def test_al_23_rooms_without_members_are_added_behind_the_own_one_in_ascending_order_of_their_names() -> None:
    class Backward:
        """The later the broker, the earlier the room; the clients are in room m."""

        def room_of_queue(self, queue: MessageQueue) -> str:
            return {"b1": "z", "b2": "m", "b3": "a"}[queue.broker_name]

        def room_of_client(self, client_id: str) -> str:
            return "m"

    queues = [*q(2, "b1"), *q(2, "b2"), *q(2, "b3")]
    assert numbers(Nearby(resolver=Backward()), queues, ["c1", "c2"]) == [[3, 5, 1], [4, 6, 2]]


def test_al_27_remainders_pile_up_on_the_first_unless_rooms_are_divided_together() -> None:
    queues = [*q(1, "r1@b"), *q(1, "r2@b")]
    ids = ["r9@a", "r9@b"]
    assert numbers(Nearby(), queues, ids) == [[1, 2], []]
    assert numbers(Nearby(together=True), queues, ids) == [[1], [2]]


# --- consistent hash


def test_xo_8_al_35_the_recomputed_example_and_al_33_only_the_leavers_queues_move() -> None:
    """XO-8, AL-33, AL-35: 10 virtual nodes `<id>-<index>`, the queue's text, 4 bytes of MD5."""
    assert ConsistentHash() == ConsistentHash(10, md5_hash)
    queues = q(8)
    assert md5_hash(queue_text(queues[0])) == 562_732_085
    assert queue_text(queues[0]) == "MessageQueue [topic=T, brokerName=b, queueId=0]"

    def owners(ids):
        owner_of = {queue: own for own, share in divide(ConsistentHash(), "g", queues, ids).items() for queue in share}
        return " ".join(owner_of[queue] for queue in queues)

    assert owners(["c1", "c2", "c3"]) == "c2 c3 c1 c2 c2 c3 c3 c2"
    assert owners(["c1", "c3"]) == "c1 c3 c1 c1 c3 c3 c3 c1"


def test_al_28_an_id_that_comes_again_goes_on_with_its_indexes() -> None:
    keys: list[str] = []

    def spy(key: str) -> int:
        keys.append(key)
        return md5_hash(key)

    ConsistentHash(2, spy).allocate("g", "a", q(1), ["a", "b", "a"])
    ring = ["a-0", "a-1", "b-0", "b-1", "a-2", "a-3"]
    assert keys == [*ring, queue_text(q(1)[0])]


def test_al_28_each_call_builds_a_new_ring() -> None:
    places = {"a-0": 10, "b-0": 20, queue_text(q(1)[0]): 5}
    strategy = ConsistentHash(1, lambda key: places[key])
    assert numbers(strategy, q(1), ["a", "b"]) == [[1], []]
    places["a-0"] = 30
    assert numbers(strategy, q(1), ["a", "b"]) == [[], [1]]


def test_al_29_the_hash_is_md5_by_default_or_the_users_own() -> None:
    assert ConsistentHash().hash_function("abc") == 0x90015098  # RFC 1321: 900150983cd24fb0d6963f7d28e17f72
    assert numbers(ConsistentHash(1, len), q(1), ["c", "longer-than-the-queue" * 9]) == [[], [1]]


def test_al_29_no_hash_function_and_negative_virtual_nodes_are_refused() -> None:
    with pytest.raises(BadRequest, match="null"):
        ConsistentHash(10, None)  # type: ignore[arg-type]  # the case to refuse
    with pytest.raises(BadRequest, match="-1"):
        ConsistentHash(-1)


def test_al_31_no_virtual_nodes_no_queues_no_error() -> None:
    assert numbers(ConsistentHash(0), q(4), c(2)) == [[], []]


def test_al_30_al_32_the_owner_is_the_next_node_clockwise_equal_counts_and_the_ring_wraps() -> None:
    places = {"c1-0": 10, "c2-0": 20, "c3-0": 30, "c4-0": 40}
    queues = q(4)
    places |= dict(zip(map(queue_text, queues), (15, 25, 20, 45), strict=True))
    strategy = ConsistentHash(1, places.__getitem__)
    assert numbers(strategy, queues, ["c1", "c2", "c3", "c4"]) == [[4], [1, 3], [2], []]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 30))
def test_al_34_members_agree_however_many_hashes_are_equal(queue_count, member_count, places) -> None:
    strategy = ConsistentHash(hash_function=lambda key: md5_hash(key) % places)
    queues = q(queue_count)
    each = {own: strategy.allocate("g", own, queues, c(member_count)) for own in c(member_count)}
    assert coverage(queues, each).complete
    assert divide(strategy, "g", queues, c(member_count)) == each


def test_al_34_of_two_nodes_at_one_place_the_later_stays_and_all_members_agree() -> None:
    strategy = ConsistentHash(1, lambda _key: 7)
    assert numbers(strategy, q(3), ["c1", "c2"]) == [[], [1, 2, 3]]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.text("abcdef0123", min_size=1, max_size=8), min_size=2, max_size=12, unique=True),
    st.data(),
)
def test_al_33_leaving_moves_only_the_leavers_queues_and_joining_moves_queues_only_to_the_joiner(
    queue_count, names, data
) -> None:
    ids, queues = sorted(names), q(queue_count)
    gone = data.draw(st.sampled_from(ids))
    with_all = divide(ConsistentHash(), "g", queues, ids)
    without = divide(ConsistentHash(), "g", queues, [own for own in ids if own != gone])
    for own, share in without.items():
        assert set(with_all[own]) <= set(share)
        assert set(share) - set(with_all[own]) <= set(with_all[gone])
    assert coverage(queues, without).complete


# --- names


@pytest.mark.parametrize(
    "name",
    [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONFIG",
        "MACHINE_ROOM",
        "MACHINE_ROOM_NEARBY-AVG",
        "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
        "MACHINE_ROOM_NEARBY-CONSISTENT_HASH",
        "CONSISTENT_HASH",
    ],
)
def test_xo_14_each_strategy_is_found_by_its_name_on_the_wire(name) -> None:
    assert by_name(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "avg",
        "AVG ",
        "sticky",
        "MACHINE_ROOM_NEARBY",
        "MACHINE_ROOM_NEARBY-",
        "MACHINE_ROOM_NEARBY-CONFIG",
        "MACHINE_ROOM_NEARBY-MACHINE_ROOM_NEARBY-AVG",
        "\x00",
        "x" * 10_000,
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name) -> None:
    with pytest.raises(BadRequest, match="known are AVG, AVG_BY_CIRCLE, CONFIG, CONSISTENT_HASH, MACHINE_ROOM") as info:
        by_name(name)
    assert len(str(info.value)) < 400
