"""The users file: what it grants, and what is refused without telling a secret."""

import pytest

from evenq.errors import SettingsError
from evenq.serving.auth.users import User, UserResource, Users, _AllowedNames
from evenq.serving.rpc import Action

INTERNAL = '[users.evenq-internal]\nsecret = "internal-secret"\ninternal = true\n'


def user(text: str, name: str = "u") -> User:
    result = Users.parse((INTERNAL + text).encode()).get(name)
    assert result is not None
    return result


def granted(resource: str, *actions: str) -> User:
    listed = ", ".join(f'"{action}"' for action in actions)
    return user(f'[users.u]\nsecret = "12345678"\nallow = [{{ resource = "{resource}", actions = [{listed}] }}]\n')


def test_names_are_allowed_exactly_by_prefix_or_all() -> None:
    exact = granted("topic:orders", "publish")
    assert exact.may(UserResource.TOPIC, Action.PUBLISH, "orders")
    assert not exact.may(UserResource.TOPIC, Action.PUBLISH, "orders2")
    assert not exact.may(UserResource.TOPIC, Action.CONSUME, "orders")
    assert not exact.may(UserResource.GROUP, Action.CONSUME, "orders")
    prefix = granted("topic:eu-*", "consume")
    assert prefix.may(UserResource.TOPIC, Action.CONSUME, "eu-orders")
    assert prefix.may(UserResource.TOPIC, Action.CONSUME, "eu-")
    assert not prefix.may(UserResource.TOPIC, Action.CONSUME, "us-orders")
    assert not prefix.may_all(UserResource.TOPIC, Action.CONSUME)
    everything = granted("group:*", "*")
    assert everything.may_all(UserResource.GROUP, Action.OPERATE)
    assert everything.may(UserResource.GROUP, Action.DELETE, "any")
    assert not everything.may(UserResource.TOPIC, Action.CONSUME, "any")


def test_who_may_use_a_thing_may_look_at_it() -> None:
    assert granted("topic:orders", "publish").may(UserResource.TOPIC, Action.DESCRIBE, "orders")
    assert not granted("topic:orders", "describe").may(UserResource.TOPIC, Action.PUBLISH, "orders")


def test_retry_and_dead_letter_topics_belong_to_their_group() -> None:
    reader = granted("group:billing", "consume")
    for name in ("%RETRY%billing", "%DLQ%billing"):
        assert reader.may(UserResource.TOPIC, Action.CONSUME, name)
        assert not reader.may(UserResource.TOPIC, Action.PUBLISH, name)
    assert not reader.may(UserResource.TOPIC, Action.CONSUME, "%RETRY%other")
    assert not reader.may(UserResource.TOPIC, Action.CONSUME, "billing")


def test_tenants_of_a_name_are_those_who_may_make_it_and_not_all_names() -> None:
    content = INTERNAL + '[users.root]\nsecret = "12345678"\nadmin = true\n'
    for name, resource, action in (
        ("app", "topic:app-*", "publish"),
        ("maker", "topic:app-x", "create"),
        ("reader", "topic:app-*", "consume"),
        ("all", "topic:*", "publish"),
        ("team", "group:app-*", "consume"),
        ("mover", "group:app-*", "operate"),
        ("looker", "group:app-*", "describe"),
    ):
        grant = f'{{ resource = "{resource}", actions = ["{action}"] }}'
        content += f'[users.{name}]\nsecret = "12345678"\nallow = [{grant}]\n'
    users = Users.parse(content.encode())

    def tenants(kind: UserResource, name: str) -> list[str]:
        found = users.tenants_of(kind, name)
        assert all(one.may_make(kind, name) for one in found)
        return [one.name for one in found]

    assert tenants(UserResource.TOPIC, "app-x") == ["maker", "app"]
    assert tenants(UserResource.TOPIC, "app-y") == ["app"]
    assert tenants(UserResource.TOPIC, "other") == []
    assert tenants(UserResource.TOPIC, "ap") == []
    for kind, name in (
        (UserResource.GROUP, "app-g"), (UserResource.TOPIC, "%RETRY%app-g"), (UserResource.TOPIC, "%DLQ%app-g"),
        (UserResource.GROUP, "%DLQ%app-g"),
    ):  # fmt: skip
        assert tenants(kind, name) == ["team", "mover"]


def test_no_grant_of_a_group_is_one_to_send_to_its_topics() -> None:
    for actions in ("consume", "operate", "create", "delete", "*"):
        for resource in ("group:billing", "group:*"):
            holder = granted(resource, actions)
            for name in ("%RETRY%billing", "%DLQ%billing"):
                assert not holder.may(UserResource.TOPIC, Action.PUBLISH, name), (resource, actions)
    with pytest.raises(SettingsError, match="actions"):
        granted("group:billing", "publish")
    odd = User(name="odd", secrets=(), allowed={(UserResource.GROUP, Action.PUBLISH): _AllowedNames(everything=True)})
    assert not odd.may(UserResource.TOPIC, Action.PUBLISH, "%RETRY%billing")


def test_an_admin_may_all_and_a_user_without_grants_nothing() -> None:
    admin = user('[users.u]\nsecret = "12345678"\nadmin = true\n')
    assert admin.may(UserResource.TOPIC, Action.DELETE, "any")
    assert admin.may_all(UserResource.CLUSTER, Action.OPERATE)
    nobody = user('[users.u]\nsecret = "12345678"\n')
    assert not any(nobody.may(kind, action, "any") for kind in UserResource for action in Action)


def test_a_user_may_have_several_secrets_while_they_change() -> None:
    result = user('[users.u]\nsecret = ["old-secret", "new-secret"]\n')
    assert [secret.reveal() for secret in result.secrets] == [b"old-secret", b"new-secret"]
    assert "old" not in repr(result)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[users.u]\nsecret = "tiny-in"\n', "at least 8 characters"),
        ("[users.u]\n", "at least 8 characters"),
        ("[users.u]\nsecret = []\n", "a list of 1 to 4"),
        ('[users."a/b"]\nsecret = "12345678"\n', "without blanks"),
        ('[users.u]\nsecret = "12345678"\npassword = "x"\n', "unknown key 'password'"),
        ('[users.u]\nsecret = "12345678"\nadmin = "yes"\n', "true or false"),
        ('[users.u]\nsecret = "12345678"\nadmin = true\nallow = [1]\n', "give one of"),
        ('[users.u]\nsecret = "12345678"\nallow = ["topic:x"]\n', "a grant is"),
        ('[users.u]\nsecret = "12345678"\nallow = [{resource="queue:x",actions=["consume"]}]\n', "is not one of"),
        ('[users.u]\nsecret = "12345678"\nallow = [{resource="topic:a*b",actions=["consume"]}]\n', "is not one of"),
        ('[users.u]\nsecret = "12345678"\nallow = [{resource="cluster:x",actions=["describe"]}]\n', "is not one of"),
        ('[users.u]\nsecret = "12345678"\nallow = [{resource="topic:x",actions=["internal"]}]\n', "give a list out of"),
        ('[users.u]\nsecret = "12345678"\nallow = [{resource="group:x",actions=["publish"]}]\n', "give a list out of"),
        ('[users.u]\nsecret = "12345678"\nallow = [{resource="topic:x",actions=[]}]\n', "give a list out of"),
        ("[groups.u]\n", "only tables"),
        ('[users.u]\nsecret = "12345678\n', "not TOML"),
        ('[users.evenq-2]\nsecret = "12345678"\ninternal = true\n', "2 users with internal"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name_and_without_its_secrets(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        Users.parse((INTERNAL + text).encode())
    for secret in ("internal-secret", "12345678", "tiny-in"):
        assert secret not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_file_without_the_servers_own_user_is_refused() -> None:
    with pytest.raises(SettingsError, match="0 users with internal = true"):
        Users.parse(b'[users.u]\nsecret = "12345678"\n')


def test_grants_are_listed_by_resource_without_secrets() -> None:
    content = '[users.u]\nsecret = "12345678"\nallow = [\n'
    for resource, action in (
        ("topic:eu-*", "publish"),
        ("topic:eu-*", "consume"),
        ("group:*", "*"),
        ("cluster", "describe"),
    ):
        content += f'{{ resource = "{resource}", actions = ["{action}"] }},\n'
    assert user(content + "]\n").grants() == [
        ("cluster", ("describe",)),
        ("group:*", ("consume", "create", "delete", "describe", "operate")),
        ("topic:eu-*", ("consume", "describe", "publish")),
    ]
    assert user('[users.u]\nsecret = "12345678"\nadmin = true\n').grants() == []
