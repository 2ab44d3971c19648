"""Configurations from the Hugging Face hub, if `huggingface_hub` is installed and the network is there."""

from __future__ import annotations

from pathlib import Path

from perfmodel.errors import DescriptorError

HINT = ["perfmodel[hub] installs huggingface_hub", "a downloaded config.json or folder works without it"]
WANTED = ("config.json", "hf_quant_config.json")


def fetch(name: str) -> Path | None:
    """Folder with a repository's config; None where huggingface_hub is not installed. Weights are never fetched."""
    try:
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        return None
    folder = None
    for file in WANTED:
        try:
            folder = Path(_file(name, file)).parent
        except (LocalEntryNotFoundError, OSError) as error:
            if isinstance(error, EntryNotFoundError) and folder is not None:
                continue                            # hf_quant_config.json is optional
            if folder is None:
                why = "not found there" if isinstance(error, HfHubHTTPError) else "the hub cannot be reached"
                raise DescriptorError(f"{name} is not in the catalog, and {why}", HINT[1:]) from None
        except Exception as error:                  # the hub's client raises many kinds; none is a bug of ours
            if folder is None:
                raise DescriptorError(f"{name} is not in the catalog, and the hub says {type(error).__name__}",
                                      HINT[1:]) from None
    return folder


def _file(name: str, file: str) -> str:
    """Where the file lies: from the hub, which is asked once; from the cache where the hub does not answer."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        get_hf_file_metadata(hf_hub_url(name, file), timeout=5)
    except (HfHubHTTPError, HFValidationError):
        raise
    except Exception:                               # no network, in the words of whatever HTTP library it has
        return str(hf_hub_download(name, file, local_files_only=True))
    return str(hf_hub_download(name, file, etag_timeout=5))
