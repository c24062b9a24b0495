"""Signs and verifies bytes with SSH keys (`ssh-keygen -Y`, OpenSSH 8.2 and later); no network, no key is read here."""

import tempfile
from pathlib import Path

from draftyard.doors.shell import run
from draftyard.nouns.errors import ExitCode, Failure

_TIMEOUT_S = 60.0
_TOOL = "ssh-keygen"


def sign(data: bytes, key: Path, namespace: str) -> bytes:
    """An armoured signature; `key` is a private key, or a public one whose private half an agent holds.

    Failure when the key is missing, is open to others, has a passphrase and no agent, or is none.
    """
    if not key.is_file():
        raise Failure(f"there is no key {key}", f"make one: {_TOOL} -t ed25519 -f {key}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data")
        path.write_bytes(data)
        argv = [_TOOL, "-Y", "sign", "-q", "-f", str(key), "-n", namespace, str(path)]
        done = run(argv, timeout_s=_TIMEOUT_S, check=False)
        signature = path.with_name("data.sig")
        if done.exit_code != 0 or not signature.is_file():
            said = " ".join(done.stderr.split()) or "it said nothing"
            hint = "chmod 600 the key; one with a passphrase goes into ssh-agent, and its .pub file is given here"
            raise Failure(f"{key} does not sign: {said}", hint, ExitCode.ENVIRONMENT)
        return signature.read_bytes()


def verify(data: bytes, signature: bytes, allowed: Path, namespace: str) -> str:
    """Who signed, as the file of allowed signers names them.

    Failure (exit code 1) when the signature is of other bytes or is none, when its key is not allowed (any more), or
    for another purpose.
    """
    if not allowed.is_file():
        raise Failure(
            f"there is no file of allowed signers {allowed}",
            'write one line: NAME namespaces="draftyard" KEYTYPE PUBLIC_KEY',
            ExitCode.ENVIRONMENT,
        )
    with tempfile.TemporaryDirectory() as folder:
        path, beside = Path(folder, "data"), Path(folder, "data.sig")
        path.write_bytes(data)
        beside.write_bytes(signature)
        common = ["-n", namespace, "-s", str(beside)]
        done = run([_TOOL, "-Y", "check-novalidate", *common], timeout_s=_TIMEOUT_S, check=False, input_path=path)
        if done.exit_code != 0:
            raise _refused("the signature is not one of these bytes", "take the release from its source again")
        argv = [_TOOL, "-Y", "find-principals", "-s", str(beside), "-f", str(allowed)]
        found = run(argv, timeout_s=_TIMEOUT_S, check=False)
        names = found.stdout.strip().splitlines()
        if found.exit_code != 0 or not names:
            raise _refused(f"the signature is by a key that {allowed} does not allow", "ask who sealed the release")
        name = names[0].partition(",")[0]
        argv = [_TOOL, "-Y", "verify", "-f", str(allowed), "-I", name, *common]
        if run(argv, timeout_s=_TIMEOUT_S, check=False, input_path=path).exit_code != 0:
            raise _refused(f"{allowed} does not allow {name} to sign this now", "look at its dates and namespaces")
        return name


def _refused(words: str, hint: str) -> Failure:
    return Failure(words, hint, ExitCode.WORK_FAILED)
