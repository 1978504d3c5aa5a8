"""``make image-test``: builds deploy/Dockerfile without Docker and runs the image as the compose file does.

The base image is made from Debian's packages (mmdebstrap), every stage is built by buildah, and the image's entry point
runs in namespaces of its own: read-only root, no capability, user 10001, 64 MB of /dev/shm, nothing executable in
/tmp, no network but the loopback interface. Needs root, mmdebstrap, buildah and iproute2, and a package index.
"""

from __future__ import annotations

import argparse
import base64
import errno
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_BASE, _IMAGE = "localhost/mmserve-base:test", "localhost/mmserve:test"
_INSIDE = r"""
set -eu
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o nosuid,nodev,uid=10001,gid=10001 tmpfs "$root/cache"
mount -t tmpfs -o nosuid,mode=755 tmpfs "$root/dev"
for device in null zero full random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777,size=64m tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
mount -o remount,ro,bind "$root"
mount -o remount,ro "$root/dev"
ip link set lo up
setpriv --no-new-privs chroot --userspec=10001:10001 --groups= "$root" env -i "$@" &
server=$!
ask() { "$PYTHON" -m tests.image_check --ask "$root"; }
if ask; then rc=0; else rc=1; fi
kill -TERM "$server"
wait "$server" || { echo "the server ended with $?"; rc=1; }
left=$(find "$root/tmp" -name 'mmserve-run-*')
[ -z "$left" ] || { echo "left behind: $left"; rc=1; }
exit $rc
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bud", action="append", default=[], metavar="ARG", help="further argument of buildah bud")
    parser.add_argument("--directory", default="/var/tmp", help="where images are kept meanwhile, 10 GB (%(default)s)")
    parser.add_argument("--ask", metavar="ROOT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        return _ask(Path(options.ask))
    missing = [name for name in ("mmdebstrap", "buildah", "ip", "unshare", "setpriv") if shutil.which(name) is None]
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="mmserve-image-") as directory:
        buildah = _Buildah(Path(directory))
        try:
            return _check(buildah, Path(directory), options.bud)
        finally:
            buildah("rm", "--all")
            buildah("rmi", "--all", "--force")


class _Buildah:
    """Runs buildah with a storage of its own, which is a plain directory for each layer."""

    def __init__(self, directory: Path) -> None:
        storage = ["--root", str(directory / "storage"), "--runroot", str(directory / "run")]
        self._command = ["buildah", *storage, "--storage-driver", "vfs"]

    def __call__(self, *arguments: str) -> str:
        return subprocess.run(
            [*self._command, *arguments], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def build(self, *arguments: str) -> None:
        plain = ["--isolation", "chroot", "--pull-never", "--format", "docker"]
        subprocess.run([*self._command, "bud", *plain, *arguments], check=True, cwd=ROOT)


def _check(buildah: _Buildah, directory: Path, further: list[str]) -> int:
    base = directory / "base"
    base.mkdir()
    packages = "python3,python3-venv,ca-certificates"
    command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(base / "root.tar")]
    subprocess.run(command, check=True)
    (base / "Containerfile").write_text("FROM scratch\nADD root.tar /\n")
    buildah.build("-t", _BASE, str(base))
    ignored = ["--ignorefile", "deploy/Dockerfile.dockerignore"]
    buildah.build("-f", "deploy/Dockerfile", *ignored, "-t", _IMAGE, "--build-arg", f"BASE={_BASE}", *further, ".")
    config: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", _IMAGE))["Docker"]["config"]
    print(
        {name: config[name] for name in ("User", "Env", "Entrypoint", "Cmd", "ExposedPorts", "Volumes", "StopSignal")}
    )
    assert config["User"] == "10001:10001"
    root = buildah("mount", buildah("from", "--pull-never", _IMAGE))
    print(
        subprocess.run(["du", "-sh", root], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0], "in all"
    )
    assert not list(Path(root).glob("usr/bin/*g++*")), "a compiler in the image"
    words = [*config["Env"], *config["Entrypoint"], *config["Cmd"]]
    command = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "bash", "-c", _INSIDE, "bash", root]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *words], env=environment, check=False).returncode


def _ask(root: Path) -> int:
    """Ask the server about a picture, and see how its processes are confined; run in the network of the container."""
    import time
    import urllib.request

    url = "http://127.0.0.1:8000"
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.5)
    picture = base64.b64encode((ROOT / "examples/picture.png").read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "text", "text": "What colour is the circle?"},
    ]
    body = json.dumps({"model": "llava", "messages": [{"role": "user", "content": content}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer = json.loads(reply.read())["choices"][0]["message"]["content"]
    print("answer:", answer)
    assert "green" in answer.lower()
    confined = 0
    for status in (root / "proc").glob("[0-9]*/status"):
        fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        if not (status.parent / "cmdline").read_text().startswith("mmserve: "):
            continue
        assert fields["Uid"].split() == ["10001"] * 4
        assert int(fields["CapEff"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        assert (status.parent / "root").resolve() == root
        confined += 1
    print("processes of user 10001, without capabilities:", confined)
    assert confined >= 7
    assert _is_read_only(root)
    return 0


def _is_read_only(directory: Path) -> bool:
    try:
        (directory / "written").touch()
    except OSError as error:
        return error.errno == errno.EROFS
    return False


if __name__ == "__main__":
    sys.exit(main())
