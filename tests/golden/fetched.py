"""The models that scripts/models downloads."""

import importlib.machinery
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def fetched():
    """scripts/models: the models and their folder."""
    return importlib.machinery.SourceFileLoader("models", str(ROOT / "scripts" / "models")).load_module()


def files(names: list[str]):
    """Names and files of the models; of all without `names`."""
    models = fetched()
    for name in names or models.MODELS:
        model = models.MODELS[name]
        file = models.folder() / model["file"]
        if not models.is_whole(file, model):
            raise SystemExit(f"{file} is not there: run `scripts/models {name}`")
        yield name, file
