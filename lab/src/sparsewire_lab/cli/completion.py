"""`sparsewire completion`: scripts that let a shell complete commands, options and their values."""

import argparse
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence

from sparsewire_lab.cli.words import Option, Words, words_of_fields, words_of_parser
from sparsewire_lab.errors import Parser

_EPILOGUE = """\
to use it:
  bash   source <(sparsewire completion bash)         in ~/.bashrc
  zsh    source <(sparsewire completion zsh)          in ~/.zshrc, after compinit
  fish   source (sparsewire completion fish | psub)   in ~/.config/fish/config.fish
"""
_TOP = (
    Option("--help", help="show all commands"),
    Option("--version", help="show the version"),
    Option("--debug", help="show where in the code an error happened"),
)
_BASH = """\
# Completion of sparsewire for bash: source <(sparsewire completion bash)
_sparsewire() {
  local current=${COMP_WORDS[COMP_CWORD]} before=$((COMP_CWORD - 1)) place= word choices= files=
  # Bash takes --option=value for three words.
  if [[ $current == '=' ]]; then current=; elif [[ ${COMP_WORDS[before]} == '=' ]]; then
    before=$((before - 1))
  fi
  for word in "${COMP_WORDS[@]:1:before}"; do
    case "$place $word" in
      @PLACES@) place="$place $word" ;;
    esac
  done
  case "$place ${COMP_WORDS[before]}" in
@VALUES@
    *) case "$place" in
@WORDS@
      esac ;;
  esac
  COMPREPLY=()
  if [[ -n $files ]]; then
    compopt -o filenames 2> /dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$current")
  fi
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$choices" -- "$current")
}
complete -F _sparsewire sparsewire
"""
_ZSH = """\
#compdef sparsewire
# Completion of sparsewire for zsh: source <(sparsewire completion zsh), after compinit
_sparsewire() {
  local place= word files=
  local -a choices
  for word in "${(@)words[2,CURRENT-1]}"; do
    case "$place $word" in
      @PLACES@) place="$place $word" ;;
    esac
  done
  case "$place $words[CURRENT-1]" in
@VALUES@
    *) case "$place" in
@WORDS@
      esac ;;
  esac
  [[ -n $files ]] && _files
  (( $#choices )) && _describe sparsewire choices
}
# Read from a folder of functions, this file is the function itself, called for the first time.
if [[ $funcstack[1] == _sparsewire ]]; then
  _sparsewire "$@"
else
  compdef _sparsewire sparsewire
fi
"""


def main(words: Sequence[str]) -> int:
    """Print the script for a shell; return the exit status."""
    args = make_parser().parse_args(words)
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](all_words()), end="")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="sparsewire completion",
        description="Print a script that lets a shell complete commands, options and values.",
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    return parser


def all_words() -> dict[str, Words]:
    """Return what each command understands; those that lack packages, and cannot run, nothing."""
    from sparsewire_lab.cli.main import COMMANDS, missing_packages

    found = {}
    for name, command in COMMANDS.items():
        known = Words() if missing_packages(command) else words_of(command.module)
        found[name] = dataclasses.replace(known, help=command.summary)
    return found


def words_of(module_name: str) -> Words:
    """Return what the command of a module understands, from its parser or its dataclass."""
    module = importlib.import_module(module_name)
    if hasattr(module, "make_parser"):
        return words_of_parser(module.make_parser())
    from sparsewire_lab.train.options import Experiment

    for _, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, Experiment) and kind.__module__ == module_name:
            return words_of_fields(kind) or Words()
    return Words()


def bash(commands: dict[str, Words]) -> str:
    """Return the script for bash, also for its old version 3.2."""

    def choose(options: Iterable[Option]) -> str:
        return f"choices={_quoted(' '.join(option.name for option in options))}"

    return _filled(_BASH, commands, choose)


def zsh(commands: dict[str, Words]) -> str:
    """Return the script for zsh, which shows what each option is for."""

    def choose(options: Iterable[Option]) -> str:
        shown = (f"{name}:{told}" if told else name for name, _, _, told, *_ in options)
        return f"choices=({' '.join(map(_quoted, shown))})"

    return _filled(_ZSH, commands, choose)


def fish(commands: dict[str, Words]) -> str:
    """Return the script for fish, which shows what each option is for."""
    lines = [
        "# Completion of sparsewire for fish: source (sparsewire completion fish | psub)",
        "complete -c sparsewire -f",
    ]
    for place, known in _places(commands):
        seen = [f"__fish_seen_subcommand_from {name}" for name in place]
        if below := known.parts:
            seen.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
        begin = f"complete -c sparsewire -n {_quoted('; and '.join(seen))}"
        for option in _words(known):
            name, told = option.name, f" -d {_quoted(option.help)}" if option.help else ""
            needs = {"flag": "", "path": " -r -F"}.get(option.kind, " -x")
            values = f" -a {_quoted(' '.join(option.values))}" if option.values else ""
            word = f"-l {name[2:]}{needs}{values}" if name.startswith("--") else f"-a {name}"
            lines.append(f"{begin} {word}{told}")
        if known.paths:
            lines.append(f"{begin} -F")
    return "\n".join(lines) + "\n"


def _filled(
    script: str, commands: dict[str, Words], choose: Callable[[Iterable[Option]], str]
) -> str:
    """Put what is known into a script.

    Args:
        script: With @PLACES@, @VALUES@ and @WORDS@ where these belong.
        commands: The commands.
        choose: Returns the line that makes words the choices.
    """
    places, values, words = [], [], []
    for place, known in _places(commands):
        name = "".join(f" {word}" for word in place)
        places += [_quoted(name)] if place else []
        files = "files=1; " if known.paths else ""
        words.append(f"      {_quoted(name)}) {files}{choose(_words(known))} ;;")
        for option in known.options:
            if option.kind != "flag":
                files = "files=1" if option.kind == "path" else choose(map(Option, option.values))
                values.append(f"    {_quoted(f'{name} {option.name}')}) {files} ;;")
    filling = {"PLACES": " | ".join(places), "VALUES": "\n".join(values), "WORDS": "\n".join(words)}
    for mark, text in filling.items():
        script = script.replace(f"@{mark}@", text)
    return script


def _places(commands: dict[str, Words]) -> Iterator[tuple[tuple[str, ...], Words]]:
    """Yield every place where words are expected, with the words that lead there."""
    rest = [((), Words(options=_TOP, parts=commands))]
    while rest:
        place, known = rest.pop(0)
        yield place, known
        rest += [((*place, name), part) for name, part in known.parts.items()]


def _words(known: Words) -> list[Option]:
    """Return all words that may come next: commands, words of the command, options."""
    parts = [Option(name, help=part.help) for name, part in known.parts.items()]
    return [*parts, *map(Option, known.values), *known.options]


def _quoted(text: str) -> str:
    """Return a text in single quotes, which mean the same in all three shells."""
    return "'" + text.replace("'", "’") + "'"
