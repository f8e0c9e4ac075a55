"""Where CI is set, a skip that is not on the list of conftest.py is a failure."""

import os
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


@pytest.mark.parametrize("name", SKIPS)
@pytest.mark.parametrize("ci", ["", "true"])
def test_an_unlisted_skip_fails(name, ci, tmp_path):
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(SKIPS[name])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "CI": ci})
    refused = bool(ci) and name in ("unlisted", "mark", "module", "expected failure")
    assert ("this skip is not in ALLOWED_SKIPS" in run.stdout) == refused
    assert ((" failed" in run.stdout or " error" in run.stdout) and run.returncode != 0) == refused


@pytest.mark.parametrize("reason", ALLOWED_SKIPS)
def test_the_list_has_no_more_than_there_is(reason):
    tests = [
        path.read_text()
        for path in TESTS.rglob("*.py")
        if path.name not in ("conftest.py", Path(__file__).name)
    ]
    assert any(reason in text for text in tests)
