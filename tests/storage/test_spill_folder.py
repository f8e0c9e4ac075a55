"""Where the file of what waits outside of memory lies."""

import os
import tempfile

import pytest

import tf_comptrain as ct
from tf_comptrain.storage import spill_folder


@pytest.fixture
def mounts(monkeypatch, tmp_path):
    """Says which folders are mounted, by their file systems."""

    def mounted(**kinds):
        lines = [f"device {folder} {kind} rw 0 0\n" for folder, kind in kinds.items()]
        (tmp_path / "mounts").write_text("".join(lines))
        monkeypatch.setattr(spill_folder, "_MOUNTS", tmp_path / "mounts")

    spill_folder.warn_of_memory.cache_clear()
    return mounted


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """The temporary folder and that for large files."""
    usual, on_disk = tmp_path / "tmp", tmp_path / "var tmp"
    usual.mkdir()
    on_disk.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    monkeypatch.setattr(spill_folder, "_ON_DISK", str(on_disk))
    return usual, on_disk


def escaped(folder):
    return str(folder).replace(" ", "\\040")


def test_the_longest_mount_point_decides(mounts, tmp_path):
    mounts(**{"/": "ext4", str(tmp_path): "tmpfs", f"{tmp_path}/disk": "xfs"})
    assert spill_folder.is_in_memory(str(tmp_path / "other"))
    assert spill_folder.is_in_memory(str(tmp_path / "disks"))
    assert not spill_folder.is_in_memory(str(tmp_path / "disk" / "below"))
    assert not spill_folder.is_in_memory("/")


def test_a_link_is_followed(mounts, tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "link").symlink_to("memory")
    mounts(**{"/": "ext4", f"{tmp_path}/memory": "tmpfs"})
    assert spill_folder.is_in_memory(str(tmp_path / "link"))


def test_a_system_that_does_not_tell(monkeypatch, tmp_path):
    monkeypatch.setattr(spill_folder, "_MOUNTS", tmp_path / "not there")
    assert not spill_folder.is_in_memory(str(tmp_path))


@pytest.mark.parametrize("usual_kind, number", [("ext4", 0), ("tmpfs", 1)])
def test_the_default_folder_is_on_a_disk_where_one_is(mounts, temporary, usual_kind, number):
    mounts(**{"/": "ext4", str(temporary[0]): usual_kind})
    folder = ct.Offload().path()
    assert os.path.dirname(folder) == str(temporary[number])
    assert os.stat(folder).st_mode & 0o777 == 0o700


def test_a_folder_in_memory_is_warned_of_once(mounts, temporary, caplog):
    usual, on_disk = temporary
    mounts(**{str(usual): "tmpfs", escaped(on_disk): "tmpfs"})
    with caplog.at_level("WARNING"):
        for _ in range(2):
            assert os.path.dirname(ct.Offload().path()) == str(usual)
    assert sum("Give Offload a `folder` on a disk" in record.message for record in caplog.records) == 1


def test_somebody_elses_folder(mounts, temporary):
    mounts(**{"/": "ext4"})
    (temporary[0] / f"tf_comptrain-{os.getuid()}").symlink_to(temporary[1])
    with pytest.raises(ValueError, match="not a folder of this user's own"):
        ct.Offload().path()
