"""python -m demi_torch: what a build needs to know, and the program.

    python -m demi_torch --cmake-prefix     for -DCMAKE_PREFIX_PATH
    python -m demi_torch --pkg-config       for PKG_CONFIG_PATH
    python -m demi_torch --libtorch         the torch that demi uses
    python -m demi_torch --version
    python -m demi_torch run ARGUMENTS      the program, which is also installed as `demi`
    python -m demi_torch export ...         a network of Python's as a .pt2 file; in a program: from demi_torch import export
    python -m demi_torch checkpoint ...     checkpoints to and from torch.save's files; from demi_torch import checkpoint
"""

import importlib
import os
import sys

import demi_torch

USAGE = 2  # as the program's own exit code


def run_program(arguments=None):
    """Becomes the program demi, with this Python's LibTorch, or the one that DEMI_LIBTORCH names."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prefix = demi_torch.prefix()
    program = prefix / "bin" / "demi"
    if not os.environ.get("DEMI_LIBTORCH"):
        try:
            libtorch = demi_torch.libtorch()
        except demi_torch.LibTorchError as error:
            sys.exit(_failed(error))
        if libtorch.resolve() != (prefix.parent / "torch").resolve():  # in another folder of Python's than demi
            os.environ["DEMI_LIBTORCH"] = str(libtorch)
    try:
        os.execv(program, ["demi", *arguments])
    except OSError as error:
        sys.exit(_failed(f"{program} cannot be started ({error.strerror}): pip install --force-reinstall demi-torch's wheel"))


def _failed(text):
    print(f"demi: {text}", file=sys.stderr)
    return USAGE


def main(arguments):
    if arguments and arguments[0] == "run":
        run_program(arguments[1:])
    if arguments and arguments[0] in ("export", "checkpoint"):
        sys.argv = [f"demi_torch {arguments[0]}", *arguments[1:]]
        return importlib.import_module(f"demi_torch.{arguments[0]}").main()
    answers = {
        "--cmake-prefix": demi_torch.prefix,
        "--pkg-config": lambda: demi_torch.prefix() / "lib" / "pkgconfig",
        "--libtorch": demi_torch.libtorch,
        "--version": demi_torch.version,
    }
    if len(arguments) != 1 or arguments[0] not in answers:
        print(__doc__.strip(), file=sys.stdout if arguments in (["-h"], ["--help"]) else sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else USAGE
    try:
        print(answers[arguments[0]]())
    except demi_torch.LibTorchError as error:
        return _failed(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
