"""The users file of docs/guides/security.md says what the page says, and its Python runs."""

from evenq.serving.rpc import Action
from evenq.serving.users import Kind, Users


def test_the_users_file_of_the_page_grants_what_it_tells(blocks):
    (file,) = blocks("docs/guides/security.md", "toml")
    users = Users.parse(file.text.encode())
    shop, operator = users.get("shop"), users.get("operator")
    assert users.internal.name == "evenq-internal"
    assert operator is not None
    assert operator.admin
    assert shop is not None
    assert shop.may(Kind.TOPIC, Action.PUBLISH, "orders")
    assert not shop.may(Kind.TOPIC, Action.CONSUME, "orders")
    assert shop.may(Kind.TOPIC, Action.CONSUME, "eu-invoices")
    assert shop.may(Kind.GROUP, Action.CONSUME, "shop-billing")


def test_the_python_of_the_page_runs(blocks, endpoint, start):
    (program,) = blocks("docs/guides/security.md", "python")
    process = start(program.at(endpoint))
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 0, output
