from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.core.errors import DeclarationError, UsageError, UserFunctionError
from headrace.operate.cli.loader import MODULE, load_app

pytestmark = pytest.mark.usefixtures("clean_modules")

ONE = """
import headrace as hr
app = hr.App("one")
same = app
if __name__ == "__main__":
    raise SystemExit("this must not run")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pipeline.py"


def test_the_app_of_a_file(file: Path) -> None:
    file.write_text(ONE)
    assert load_app(file).name == "one"
    assert load_app(file, "one").name == "one"


def test_functions_live_in_a_module_that_can_be_found(file: Path) -> None:
    file.write_text(ONE + "from dataclasses import dataclass\n@dataclass\nclass View:\n    member: 'str'\n")
    load_app(file)
    module = sys.modules[MODULE]
    assert module.View.__module__ == MODULE
    assert module.__file__ == str(file)
    assert not hasattr(module, "__headrace_loading__")


def test_the_file_can_import_its_neighbours_and_read_its_arguments(file: Path, tmp_path: Path) -> None:
    (tmp_path / "headrace_neighbour_of_a_test.py").write_text("NAME = 'by-neighbour'\n")
    file.write_text(
        "import sys\nimport headrace as hr\nfrom headrace_neighbour_of_a_test import NAME\n"
        "app = hr.App(NAME + sys.argv[1])\n"
    )
    try:
        assert load_app(file, arguments=["-x"]).name == "by-neighbour-x"
    finally:
        sys.modules.pop("headrace_neighbour_of_a_test", None)


def test_several_apps_ask_which(file: Path) -> None:
    file.write_text("import headrace as hr\na = hr.App('one')\nb = hr.App('two')\n")
    with pytest.raises(UsageError, match="has 2 apps: one, two") as raised:
        load_app(file)
    assert raised.value.hint == "choose one: --app one"
    assert load_app(file, "two").name == "two"
    with pytest.raises(UsageError, match="has no app 'three'"):
        load_app(file, "three")


def test_two_apps_of_one_name(file: Path) -> None:
    file.write_text("import headrace as hr\na = hr.App('one')\nb = hr.App('one')\n")
    with pytest.raises(UsageError, match="two apps named 'one'"):
        load_app(file)


@pytest.mark.parametrize("text", ["", "import headrace as hr\ndef make():\n    return hr.App('one')\n"])
def test_no_app(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match="has no app at its top level"):
        load_app(file)


def test_an_exception_shows_the_users_frames_alone(file: Path) -> None:
    file.write_text("def deep():\n    return 1 / 0\n\ndeep()\n")
    with pytest.raises(UserFunctionError) as raised:
        load_app(file)
    story = raised.value.message
    assert story.startswith(f"{file} can't be loaded\nTraceback")
    assert f'File "{file}", line 4, in <module>\n    deep()' in story
    assert f'File "{file}", line 2, in deep' in story
    assert "loader.py" not in story
    assert story.endswith("ZeroDivisionError: division by zero")


def test_a_syntax_error_points_at_its_line(file: Path) -> None:
    file.write_text("x = 1\ndef f(:\n")
    with pytest.raises(UserFunctionError, match=r"is not valid Python\n  File \".*pipeline.py\", line 2"):
        load_app(file)


def test_a_file_that_exits(file: Path) -> None:
    file.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UserFunctionError, match=r"called sys.exit\(3\)"):
        load_app(file)


def test_a_wrong_declaration_keeps_its_own_error(file: Path) -> None:
    file.write_text("import headrace as hr\napp = hr.App('a b')\n")
    with pytest.raises(DeclarationError, match="'a b' is not a usable id") as raised:
        load_app(file)
    assert f"at {file}:2: app = hr.App('a b')" in raised.value.message


def test_no_file_and_a_folder(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*pipeline.py"):
        load_app(file)
    with pytest.raises(UsageError, match="is a folder"):
        load_app(tmp_path)
