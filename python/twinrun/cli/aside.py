"""twinrun completion, help and manual: what helps to use the other verbs."""

from __future__ import annotations

import os

import click

from ..errors import TwinrunError
from .help import Verb

__all__ = ["completion", "help", "manual"]

_SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> int:
    """Print what completes twinrun's words in a shell: verbs, options and their values.

    The output is a script for that shell, which asks twinrun for the words.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise TwinrunError(f"this version of click completes nothing in {shell}", fix="pip install -U click")
    root = click.get_current_context().find_root().command
    # Not the class's own: of bash it starts a bash, to look at its version.
    click.echo(ShellComplete.source(found(root, {}, "twinrun", "_TWINRUN_COMPLETE")))
    return 0


@click.command(cls=Verb)
@click.argument("words", nargs=-1, metavar="[VERB]...")
def help(words: tuple[str, ...]) -> int:
    """Show the help of a verb, as VERB --help does; without a verb that of twinrun."""
    context = click.get_current_context().find_root()
    command = context.command
    for word in words:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            raise TwinrunError(f"there is no verb {' '.join(words)!r:.60}", fix="verbs: twinrun help")
        command, context = found, click.Context(found, parent=context, info_name=word)
    click.echo(command.get_help(context))
    return 0


def _check_page(path: str) -> None:
    """Raises TwinrunError where something other than a page of twinrun's has this name."""
    from .manual import is_page

    if not os.path.lexists(path):
        return
    ours = False
    if os.path.isfile(path) and not os.path.islink(path):
        try:
            with open(path, "rb") as file:
                ours = is_page(file.read())
        except OSError as error:
            raise TwinrunError(f"cannot be read: {error.strerror}; nothing was written", where=path) from None
    if not ours:
        raise TwinrunError(
            "is not a page that twinrun wrote, or was changed since: nothing was written",
            where=path,
            fix="move it away, or name another folder",
        )


@click.command(cls=Verb)
@click.argument("folder", type=click.Path(file_okay=False))
def manual(folder: str) -> int:
    """Write the manual pages, one for each verb, into FOLDER.

    Pages that an earlier call wrote are replaced. Any other file of these names is an error, and nothing is
    written then.
    """
    from .. import _core
    from ..outputs import write_whole
    from .manual import pages

    os.makedirs(folder, exist_ok=True)
    found = pages(click.get_current_context().find_root(), _core.__version__)
    for name in found:
        _check_page(os.path.join(folder, name))
    for name, text in found.items():
        write_whole(os.path.join(folder, name), text.encode(), durable=False)
    click.echo(f"{len(found)} pages in {folder}: man twinrun, man twinrun-compare, ...")
    return 0
