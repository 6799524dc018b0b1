"""demi for C++: where pip has put its program, libraries, headers and CMake files. See demi_torch.__main__."""

import importlib.metadata
import importlib.util
import pathlib


class LibTorchError(Exception):
    """This Python has no LibTorch that demi can use; the text says what to do."""


def prefix():
    """The folder with bin/, lib/, include/ and share/, for CMAKE_PREFIX_PATH."""
    return pathlib.Path(__file__).resolve().parent


def version():
    """demi's version and that of its LibTorch: "0.1.0+torch2.15"."""
    return importlib.metadata.version("demi-torch")


def libtorch():
    """The folder with lib/ and include/ of this Python's torch, which is not imported. Raises LibTorchError without one of the
    minor version that demi was compiled against."""
    wanted = version().partition("+torch")[2]
    advice = f"pip install 'torch=={wanted}.*'"
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise LibTorchError(f"this Python has no torch, whose LibTorch demi needs: {advice}")
    folder = pathlib.Path(list(spec.submodule_search_locations)[0])
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise LibTorchError(f"{folder} is not installed as a package, so that its version is unknown: {advice}") from None
    if found.split(".")[:2] != wanted.split("."):
        raise LibTorchError(
            f"demi was compiled against LibTorch {wanted}, and this Python has torch {found} in {folder}: {advice}, or build "
            "demi with that one"
        )
    if not (folder / "lib" / "libtorch_cpu.so").exists():
        raise LibTorchError(f"torch {found} in {folder} has no lib/libtorch_cpu.so: {advice} --force-reinstall")
    return folder
