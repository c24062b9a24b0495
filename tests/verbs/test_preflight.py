"""`draftyard doctor --release` on this machine, with programs in front of PATH that print what was recorded."""

import json
import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from tests.fakes.sealed_release import PLAN, make_key, seal

from draftyard.cli import main

RECORDED = Path(__file__).resolve().parents[1] / "doors" / "recorded"


def programs(root: Path, gpus: str = "gpus-h200", topology: str = "topology-nvlink", image: bool = True) -> str:
    """A PATH whose nvidia-smi and docker print recorded texts."""
    folder = root / "bin"
    folder.mkdir()
    smi = f"""case "$*" in
*query-gpu*) cat {RECORDED}/{gpus}.txt;;
*compute-apps*) ;;
*topo*) cat {RECORDED}/{topology}.txt;;
esac"""
    docker = f"""case "$*" in
info*) cat {RECORDED}/docker-info.txt;;
*inspect*) {f"cat {RECORDED}/image-inspect.txt" if image else "exit 1"};;
esac"""
    for name, text in (("nvidia-smi", smi), ("docker", docker)):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def looked(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    (tmp_path / "scratch").mkdir(exist_ok=True)
    argv = ["doctor", "--release", str(tmp_path / "release"), "--allowed-signers", str(tmp_path / "key.allowed")]
    code = main([*argv, "--scratch", str(tmp_path / "scratch"), "--format", "json", *words])
    checks = json.loads(capsys.readouterr().out)
    assert all(bool(one["hint"]) == (one["finding"] != "ok") for one in checks)
    return code, {one["name"]: one for one in checks}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return seal(tmp_path, "release", make_key(tmp_path / "key"))


FREE = ("--ports", "18080,18081,18082")


def test_a_machine_that_fits(tmp_path, release, capsys, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path))
    code, checks = looked(tmp_path, capsys, *FREE)
    assert [one for one in checks.values() if one["finding"] == "missing"] == []
    assert code == 0
    assert {"release", "driver", "gpu", "gpu memory", "gpu links", "mig", "image", "TensorRT", "ports"} <= set(checks)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_machine_that_does_not(tmp_path, release, capsys, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path, "gpus-h100-pcie", "topology-phb", image=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code, checks = looked(tmp_path, capsys, "--ports", f"{port},1,2")
    missing = {name for name, one in checks.items() if one["finding"] == "missing"}
    assert {"gpu", "driver", "image", "ports"} <= missing
    assert str(port) in checks["ports"]["what"]
    assert code == 3


def test_a_machine_without_a_driver_or_docker(tmp_path, release, capsys, monkeypatch):
    (tmp_path / "bin").mkdir()
    for name in ("ssh-keygen", "timedatectl"):
        for folder in os.environ["PATH"].split(os.pathsep):
            if Path(folder, name).is_file():
                (tmp_path / "bin" / name).symlink_to(Path(folder, name))
                break
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    code, checks = looked(tmp_path, capsys, *FREE)
    assert code == 3
    assert "found 0: none" in checks["gpu"]["what"]
    assert "cannot start docker" in checks["container runtime"]["what"]


def test_a_driver_tool_that_fails_hides_nothing_else(tmp_path, release, capsys, monkeypatch):
    monkeypatch.setenv("PATH", programs(tmp_path))
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    code, checks = looked(tmp_path, capsys, *FREE)
    assert code == 3
    assert "NVIDIA-SMI has failed" in checks["gpu"]["what"]
    assert checks["image"]["finding"] == "ok"


def test_a_damaged_release_is_found_first(tmp_path, release, capsys):
    """Ranks of two builds, or a cut one: refused before a server would start."""
    rank = release / PLAN.place / "rank1.engine"
    data = rank.read_bytes()
    rank.unlink()
    rank.write_bytes(data[:-1] + b"\0")
    code, checks = looked(tmp_path, capsys)
    assert (code, list(checks)) == (3, ["release"])
    assert checks["release"]["what"] == f"{PLAN.place}/rank1.engine has other bytes than were sealed"
    rank.write_bytes(data[:100])
    assert "has 100 bytes" in looked(tmp_path, capsys)[1]["release"]["what"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try it as another user")
def test_the_service_user_must_be_able_to_write(capsys, monkeypatch):
    """A user without a name and without a home, as containers have."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)  # so that others may come near
        seal(root, "release", make_key(root / "key"))
        monkeypatch.setenv("PATH", programs(root))
        words = (*FREE, "--service-user", "12345")
        code, checks = looked(root, capsys, *words)
        assert (code, checks["scratch"]["finding"]) == (3, "missing")
        assert "Permission denied" in checks["scratch"]["what"]
        os.chown(root / "scratch", 12345, 12345)
        code, checks = looked(root, capsys, *words)
        assert (code, checks["scratch"]["what"]) == (0, "12345 can write and read back")
        assert list((root / "scratch").iterdir()) == []
        (root / "release" / "release.json").chmod(0o600)
        assert "Permission denied" in looked(root, capsys, *words)[1]["scratch"]["what"]


def test_wishes_that_make_no_sense(tmp_path, release, capsys):
    argv = ["doctor", "--release", str(release), "--allowed-signers", str(tmp_path / "key.allowed")]
    assert main([*argv, "--variant", "nothing"]) == 2
    assert main([*argv, "--service-user", "nobody-of-this-name"]) == 2
    with pytest.raises(SystemExit):
        main([*argv, "--ports", "1,1"])
    capsys.readouterr()
