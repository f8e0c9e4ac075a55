"""What the tests of plans share."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    """The user's own folder is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
