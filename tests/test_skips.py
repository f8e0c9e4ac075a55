"""Where CI is set, a skip that is not on the list of conftest.py is a failure."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ALLOWED_SKIPS

TESTS = Path(__file__).parent
SKIPS = {
    "listed": 'import pytest\ndef test(): pytest.skip("there is no GPU here")\n',
    "unlisted": 'import pytest\ndef test(): pytest.skip("no time")\n',
    "mark": 'import pytest\n@pytest.mark.skipif(True, reason="no time")\ndef test(): pass\n',
    "module": 'import pytest\npytest.importorskip("a_package_that_is_not_there")\ndef test(): pass\n',
    "expected failure": "import pytest\n@pytest.mark.xfail\ndef test(): assert False\n",
}


def file_of(name):
    return f"test_{name.replace(' ', '_')}.py"


@pytest.fixture(scope="module", params=["", "true"])
def said(request, tmp_path_factory):
    """Whether CI is set, and what pytest says of each test that fails."""
    folder = tmp_path_factory.mktemp("skips")
    shutil.copy(TESTS / "conftest.py", folder)
    for name, text in SKIPS.items():
        (folder / file_of(name)).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
    ]
    environment = {**os.environ, "CI": request.param}
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert run.returncode == (1 if request.param else 0)
    outcomes = re.split(
        r"^(?=(?:SKIPPED|XFAIL|FAILED|ERROR) )", run.stdout.partition("short test summary")[2], flags=re.M
    )
    return bool(request.param), [text for text in outcomes if text.startswith(("FAILED", "ERROR"))]


@pytest.mark.parametrize("name", SKIPS)
def test_an_unlisted_skip_fails(name, said):
    ci, failures = said
    of_it = [text for text in failures if file_of(name) in text]
    assert len(of_it) == (ci and name != "listed")
    assert all("this skip is not in ALLOWED_SKIPS" in text for text in of_it)


@pytest.mark.parametrize("reason", ALLOWED_SKIPS)
def test_the_list_has_no_more_than_there_is(reason):
    tests = [
        path.read_text()
        for path in TESTS.rglob("*.py")
        if path.name not in ("conftest.py", Path(__file__).name)
    ]
    assert any(reason in text for text in tests)
