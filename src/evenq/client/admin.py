"""Admin with sync calls: topics, groups, brokers of a cluster, through any broker.

    with evenq.Admin(endpoint="127.0.0.1:8081") as admin:
        admin.create_topic("orders", queues=8)

Each method has the signature and docstring of the asyncio admin's.
"""

from __future__ import annotations

from evenq.client.async_admin import Admin as AsyncAdmin
from evenq.client.async_admin import AdminClient
from evenq.client.faces import SyncFace, blocking


class Admin(SyncFace, AdminClient):
    """Thread-safe admin of a cluster. Each call waits at most `timeout_ms`, and raises the server's error."""

    create_topic = blocking(AsyncAdmin.create_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    list_lite_topics = blocking(AsyncAdmin.list_lite_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    scale_topic = blocking(AsyncAdmin.scale_topic)
    withdraw_topic = blocking(AsyncAdmin.withdraw_topic)
    permit_topic = blocking(AsyncAdmin.permit_topic)

    create_schedule = blocking(AsyncAdmin.create_schedule)
    list_schedules = blocking(AsyncAdmin.list_schedules)
    describe_schedule = blocking(AsyncAdmin.describe_schedule)
    pause_schedule = blocking(AsyncAdmin.pause_schedule)
    resume_schedule = blocking(AsyncAdmin.resume_schedule)
    run_schedule = blocking(AsyncAdmin.run_schedule)
    move_schedule = blocking(AsyncAdmin.move_schedule)
    delete_schedule = blocking(AsyncAdmin.delete_schedule)

    create_group = blocking(AsyncAdmin.create_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    explain_group = blocking(AsyncAdmin.explain_group)
    simulate_group = blocking(AsyncAdmin.simulate_group)
    diagnose_group = blocking(AsyncAdmin.diagnose_group)

    group_offsets = blocking(AsyncAdmin.group_offsets)
    reset_offsets = blocking(AsyncAdmin.reset_offsets)
    skip_offsets = blocking(AsyncAdmin.skip_offsets)
    clone_offsets = blocking(AsyncAdmin.clone_offsets)

    find_messages = blocking(AsyncAdmin.find_messages)
    get_message = blocking(AsyncAdmin.get_message)
    peek_messages = blocking(AsyncAdmin.peek_messages)
    trace_message = blocking(AsyncAdmin.trace_message)
    recall_message = blocking(AsyncAdmin.recall_message)
    list_scheduled = blocking(AsyncAdmin.list_scheduled)
    check_again = blocking(AsyncAdmin.check_again)
    describe_caller = blocking(AsyncAdmin.describe_caller)
    list_clients = blocking(AsyncAdmin.list_clients)
    describe_client = blocking(AsyncAdmin.describe_client)
    client_stack = blocking(AsyncAdmin.client_stack)
    list_dead_letters = blocking(AsyncAdmin.list_dead_letters)
    replay_dead_letters = blocking(AsyncAdmin.replay_dead_letters)

    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    list_brokers = blocking(AsyncAdmin.list_brokers)
    list_missing_brokers = blocking(AsyncAdmin.list_missing_brokers)
    drain_broker = blocking(AsyncAdmin.drain_broker)
    resume_broker = blocking(AsyncAdmin.resume_broker)
    check_scale_in = blocking(AsyncAdmin.check_scale_in)
    forget_broker = blocking(AsyncAdmin.forget_broker)

    move_leader = blocking(AsyncAdmin.move_leader)
    add_copy = blocking(AsyncAdmin.add_copy)
    remove_copy = blocking(AsyncAdmin.remove_copy)
    replace_copy = blocking(AsyncAdmin.replace_copy)
    grow_copies = blocking(AsyncAdmin.grow_copies)
    set_in_sync_min = blocking(AsyncAdmin.set_in_sync_min)
    plan_unclean_election = blocking(AsyncAdmin.plan_unclean_election)
    elect_unclean = blocking(AsyncAdmin.elect_unclean)

    def close(self) -> None:
        """Closes the connections."""
        self._run_end(self._context.let_go(self._calls.net))
