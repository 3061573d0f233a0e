"""Image sets as folders: {train,test}/<class>/<file>, or {train,test}/<client>/<class>/<file>."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedpm_lightning.data.sources.decode import ImageSplit, checked_labels, decode_images
from fedpm_lightning.data.sources.torchvision_set import ImageSpec
from fedpm_lightning.errors import BrokenDataError, MissingDataError

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm"}


@dataclass(frozen=True)
class ImageFolder:
    """A local folder of image files; class numbers follow the sorted names of the class folders.

    Attributes:
        folder: Holds train/ and test/.
        spec: Facts about a known set, or None.
        by_client: Whether the clients' folders stand above the classes' folders.
    """

    folder: Path
    spec: ImageSpec | None = None
    by_client: bool = False

    @staticmethod
    def fits(folder: Path) -> bool:
        """Whether the folder has this layout."""
        return (folder / "train").is_dir()

    def files(self) -> list[Path]:
        """Return the image files of both parts.

        Raises:
            MissingDataError: If a part has none.
        """
        return [file for split in ("train", "test") for file in self._split_files(split)]

    def read(self, split: str) -> ImageSplit:
        """Decode one part, "train" or "test".

        Raises:
            BrokenDataError: If an image cannot be read, or a test class is not in the training part.
        """
        files = self._split_files(split)
        classes = {name: number for number, name in enumerate(self._class_names())}
        for file in files:
            if file.parent.name not in classes:
                raise BrokenDataError(f"{file}: class {file.parent.name!r} is not a folder of the training part")
        spec = self.spec
        labels = [classes[file.parent.name] for file in files]
        y = checked_labels(labels, spec.num_classes if spec else len(classes), lambda row: str(files[row]))
        x = decode_images(
            lambda row: files[row].read_bytes(),
            len(files),
            spec.channels if spec else None,
            spec.size if spec else None,
            lambda row: str(files[row]),
        )
        groups = [file.parents[1].name for file in files] if self.by_client and split == "train" else None
        return ImageSplit(x, y, groups)

    def _split_files(self, split: str) -> list[Path]:
        layouts = {"*/*/*": f"{split}/<client>/<class>/<image>"} if self.by_client else {}
        if split == "test" or not self.by_client:  # nobody asks who holds a test image
            layouts["*/*"] = f"{split}/<class>/<image>"
        found = [file for pattern in layouts for file in (self.folder / split).glob(pattern)]
        files = sorted(file for file in found if file.suffix.lower() in SUFFIXES)
        if not files:
            other = sorted({file.suffix for file in found if file.is_file()})
            seen = f" (there are files ending in {', '.join(other)})" if other else ""
            raise MissingDataError(
                f"no images in {self.folder / split}{seen}; expected {' or '.join(layouts.values())}\n"
                f"An image ends in one of {', '.join(sorted(SUFFIXES))}"
            )
        return files

    def _class_names(self) -> list[str]:
        """Return the training classes, numbers in numeric order ("10" after "9")."""
        names = {file.parent.name for file in self._split_files("train")}
        if all(name.isdecimal() for name in names):
            return sorted(names, key=int)
        return sorted(names)
