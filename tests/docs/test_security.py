"""The users file of docs/guides/security.md says what the page says, and its Python runs."""

import shlex

from evenq_broker.settings import BrokerSettings
from evenq_nameserver.settings import NameserverSettings
from evenq_rebalancer.settings import RebalancerSettings

from evenq.serving.auth.users import UserResource, Users
from evenq.serving.program.settings import load
from evenq.serving.rpc import Action


def test_the_users_file_of_the_page_grants_what_it_tells(blocks):
    (file,) = blocks("docs/guides/security.md", "toml")
    users = Users.parse(file.text.encode())
    shop, operator = users.get("shop"), users.get("operator")
    assert users.internal.name == "evenq-internal"
    assert operator is not None
    assert operator.admin
    assert shop is not None
    assert shop.may(UserResource.TOPIC, Action.PUBLISH, "orders")
    assert not shop.may(UserResource.TOPIC, Action.CONSUME, "orders")
    assert shop.may(UserResource.TOPIC, Action.CONSUME, "eu-invoices")
    assert shop.may(UserResource.GROUP, Action.CONSUME, "shop-billing")


def test_the_python_of_the_page_runs(blocks, endpoint, start):
    (program,) = blocks("docs/guides/security.md", "python")
    process = start(program.at(endpoint))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def test_the_servers_of_the_page_run_beside_each_other(blocks):
    kinds = {"nameserver": NameserverSettings, "rebalancer": RebalancerSettings, "broker": BrokerSettings}
    commands = [shlex.split(c) for block in blocks("docs/guides/security.md", "") for c in block.commands()]
    servers = {c[0].removeprefix("evenq-"): c[1:] for c in commands if c[0].removeprefix("evenq-") in kinds}
    settings = {name: load(kinds[name], name, arguments, {}) for name, arguments in servers.items()}
    assert settings.keys() == kinds.keys()
    assert len({one.metrics_port for one in settings.values()}) == 3
    assert all(one.auth.enabled for one in settings.values())
    assert settings["broker"].nameservers.endswith(f":{settings['nameserver'].port}")
    assert settings["broker"].rebalancer.endswith(f":{settings['rebalancer'].port}")
