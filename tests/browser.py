"""A page as a browser shows it, after its scripts ran."""

import shutil
import subprocess
from pathlib import Path

import pytest


def shown(page: Path, folder: Path, *options: str) -> str:
    """The page's document as HTML.

    Args:
      page: A file.
      folder: Empty: for the browser's profile.
      *options: Of Chromium.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium to look at the page with")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command += [*options, "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
