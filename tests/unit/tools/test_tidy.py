"""The tree is tidy, and tidy notices when it is not."""

import pytest

from tests.unit.tools.conftest import load_tool

tidy = load_tool("tidy")


def texts(source, path="src/evenq/model/thing.py"):
    return [finding.text for finding in tidy.check_module(path, source)]


@pytest.mark.slow
def test_the_tree_is_tidy():
    findings = [str(finding) for path, source in tidy.modules() for finding in tidy.check_module(path, source)]
    assert findings == []
    assert [str(finding) for finding in tidy.empty_folders()] == []
    assert [str(finding) for finding in tidy.shared_class_names(tidy.modules())] == []
    assert [str(finding) for finding in tidy.without_importer(tidy.modules())] == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('"""Doc."""\n' + "x = 1\n" * 601, "602 lines, the limit is 600"),
        ('"""Doc."""\ndef f():\n' + "    x = 1\n" * 70, "f has 71 lines, the limit is 70"),
        ("x = 1\n", "no module docstring"),
        ('"""Doc."""\nx = 1  # TODO later\n', "a TODO names its issue"),
        ('"""Doc."""\nimport threading\n', "imports threading"),
        ('"""Doc."""\nfrom socket import socket\n', "imports socket"),
        ('"""Doc."""\nimport time\nnow = time.time()\n', "calls time.time"),
        ('"""Doc."""\nimport random\nx = random.choice("ab")\n', "calls random.choice"),
        ('"""Doc."""\nf = open("x")\n', "calls open"),
        ('"""Doc."""\neval("1")\n', "calls eval"),
        ('"""Doc."""\nimport os\nos.system("ls")\n', "calls os.system"),
    ],
)
def test_what_is_untidy_is_found(source, text):
    assert any(text in found for found in texts(source)), texts(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Doc."""\nimport random\nrng = random.Random(1)\nx = rng.choice("ab")\n',
        '"""Doc."""\nimport os\np = os.getpid()\n',
        '"""Doc."""\nx = 1  # TODO(#12) later\n',
        '"""Doc."""\nx = store.open("a")\n',
    ],
)
def test_what_is_allowed_is_left_alone(source):
    assert texts(source) == []


def test_rooms_that_own_a_door_may_use_it():
    source = '"""Doc."""\nimport time, socket\nnow = time.monotonic()\n'
    assert texts(source, "src/evenq/runtime/clock.py") == []
    assert len(texts(source, "src/evenq/client/clock.py")) == 2


def test_a_name_that_says_nothing_is_refused():
    assert any("'utils.py' says nothing" in text for text in texts('"""Doc."""\n', "src/evenq/model/utils.py"))
    assert any("'common' says nothing" in text for text in texts('"""Doc."""\n', "src/evenq/common/thing.py"))


def test_a_class_name_that_two_modules_define_is_refused():
    sources = [
        ("a.py", "class Route: ...\n"),
        ("b.py", "import x\n\n\nclass Route: ...\n"),
        ("c.py", "class Line: ...\n"),
    ]
    (finding,) = tidy.shared_class_names(sources, {})
    assert (finding.path, finding.line, finding.warning) == ("b.py", 4, False)
    assert "class Route is in a.py too" in finding.text


def test_a_class_name_may_be_shared_if_its_reason_is_listed():
    sources = [("a.py", "class Producer: ...\n"), ("b.py", "class Producer: ...\n")]
    assert list(tidy.shared_class_names(sources, {"Producer": (2, "two faces")})) == []


@pytest.mark.parametrize(("modules", "where"), [("", "no module"), ("a", "a.py"), ("abc", "a.py, b.py, c.py")])
def test_a_listed_class_name_is_in_as_many_modules_as_the_list_says(modules, where):
    sources = [(f"{module}.py", "class Producer: ...\n") for module in modules]
    (finding,) = tidy.shared_class_names(sources, {"Producer": (2, "two faces")})
    assert f"class Producer is in {where}; SHARED_CLASS_NAMES allows 2" in finding.text


def test_two_versions_of_a_class_in_one_module_are_one_home():
    source = "class Loop: ...\n\n\nclass Loop: ...\n"
    assert list(tidy.shared_class_names([("a.py", source)], {})) == []


@pytest.mark.parametrize(
    ("importer", "found"),
    [
        ("from evenq.model.thing import Thing", []),
        ("from evenq.model import thing", []),
        ("import evenq.model.thing", []),
        ('LAZY = "evenq.model.thing"', []),
        ('LAZY = "thing"', []),
        ("from evenq.model.things import Thing", ["src/evenq/model/thing.py"]),
        ('LAZY = "a thing"', ["src/evenq/model/thing.py"]),
    ],
)
def test_a_module_that_no_shipped_one_imports_is_refused(importer, found):
    sources = [("src/evenq/model/thing.py", ""), ("src/evenq/model/__init__.py", importer)]
    assert [finding.path for finding in tidy.without_importer(sources)] == found


def test_a_module_without_its_test_is_a_warning(tmp_path):
    folder = tmp_path / "src" / "evenq" / "model"
    folder.mkdir(parents=True)
    (folder / "thing.py").write_text('"""Doc."""\ndef f():\n    pass\n')
    (folder / "words.py").write_text('"""Doc."""\nWORDS = ()\n')
    (finding,) = tidy.unmirrored(tmp_path)
    assert finding.warning
    assert "tests/unit/evenq/model/test_thing.py" in finding.text


def of_tests(source):
    return [finding.text for finding in tidy.tests_that_cannot_fail([("tests/test_a.py", source)])]


@pytest.mark.parametrize(
    "body",
    [
        "assert x",
        "with pytest.raises(OSError):\n        x()",
        "if x:\n        assert y\n    else:\n        eventually(y)",
        "for one in x:\n        if one:\n            assert y",
        "checked(x)",
        "try:\n        x()\n    except OSError as error:\n        assert str(error)",
        "def story():\n        assert x\n    run(story)",
        "match x:\n        case 1:\n            assert y\n        case _:\n            assert x",
        "fake.sent()",
    ],
)
def test_a_test_that_checks_something_is_left_alone(body):
    helpers = "def checked(x):\n    sure(x)\n\ndef sure(x):\n    assert x\n\nclass Fake:\n    def sent(self):\n        assert self\n"
    assert of_tests(f"{helpers}\ndef test_a(x):\n    {body}\n") == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("x()", "test_a checks nothing: it cannot fail"),
        ("made(x)\n    x.send()", "test_a checks nothing: it cannot fail"),
        ("if x:\n        assert y", "checks nothing in some branch"),
        ("if x:\n        assert y\n    elif y:\n        assert x", "checks nothing in some branch"),
        ("with x:\n        if x:\n            assert y", "checks nothing in some branch"),
        ("def story():\n        if x:\n            assert x\n    run(story)", "checks nothing in some branch"),
        (
            "match x:\n        case 1:\n            assert y\n        case _:\n            pass",
            "checks nothing in some branch",
        ),
    ],
)
def test_a_test_that_checks_nothing_or_only_in_a_branch_is_found(body, text):
    (found,) = of_tests(f"def made(x):\n    return x\n\ndef test_a(x):\n    {body}\n")
    assert text in found


def test_a_property_test_may_check_the_examples_that_it_likes():
    assert of_tests("@given(x=st.text())\ndef test_a(x):\n    if x:\n        assert x\n") == []


@pytest.mark.slow
def test_every_test_of_the_tree_can_fail():
    assert [str(finding) for finding in tidy.tests_that_cannot_fail(tidy.sources_of_tests())] == []
