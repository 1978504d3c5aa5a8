"""``python -m docs.configuration`` prints docs/configuration.md, made from the options themselves (``make docs``)."""

from __future__ import annotations

from mmserve.cli.serve import shown
from mmserve.config.config import ENV_PREFIX
from mmserve.config.options import CONFIG_ENV, OPTIONS, Option

_HEAD = f"""\
# Configuration

Made by `make docs` from the fields of `Config` (`mmserve/config`); do not edit.

Each option of `mmserve serve` is a flag (`--max-num-seqs 64`), an environment variable
(`{ENV_PREFIX}MAX_NUM_SEQS=64`) and a key of the YAML or TOML file named by `--config` or `{CONFIG_ENV}`
(`max_num_seqs: 64`). A flag wins over the environment, the environment over the file, the file over the default.
An unknown name or a value out of range is refused at once. `--print-config` shows what would be used. The
variables in which Kubernetes tells the address of services named `mmserve` or `mmserve-...` are not taken for options.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for group in dict.fromkeys(option.group for option in OPTIONS.values()):
        parts.append(f"\n## {group}\n\n| flag | default | allowed | meaning |\n|---|---|---|---|\n")
        parts.extend(_row(option) for option in OPTIONS.values() if option.group == group)
    return "".join(parts)


def _row(option: Option) -> str:
    flag = f"`{option.flag}`"
    if option.allowed == "true or false":
        flag += f", `--no-{option.flag[2:]}`"
    default = "" if option.default in (None, ()) else f"`{shown(option.default)}`"
    return f"| {flag} | {default} | {option.allowed} | {option.help} |\n"


if __name__ == "__main__":
    print(page(), end="")
