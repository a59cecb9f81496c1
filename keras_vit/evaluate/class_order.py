"""The classes of a test set in the order of a model, whose class names are known."""

from collections.abc import Sequence

from keras_vit.data.sources import Source
from keras_vit.evaluate.imagenet_sets import by_wordnet_id, imagenet_classes
from keras_vit.evaluate.label_sets import LabelSets
from keras_vit.imagenet import is_wordnet_id
from keras_vit.writing import to_one_line


def relabel(source: Source, names: Sequence[str]) -> Source:
    """Returns the images with the classes of the model, of which the test set may have a subset.

    A class of the test set is that of the model with the same name, also after `to_one_line`, with
    which `classes.txt` is written. If names and test set are both ImageNet's classes in other words
    (WordNet ids, numbers, readable names), they are matched too.

    Args:
        source: The test set.
        names: Names of the classes of the model.

    Raises:
        ValueError: If a class of the test set is not a class of the model, or several have its name.

    Example:
        >>> from keras_vit.data import sources
        >>> pets = sources.arrays(np.zeros((2, 8, 8), "uint8"), np.array([0, 1]), ["cat", "dog"])
        >>> relabel(pets, ["dog", "owl", "cat"]).labels.tolist()
        [2, 0]
    """
    places: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        places.setdefault(name, []).append(number)
    lines = [name if name in places else to_one_line(name) for name in source.class_names]
    unknown = [line for line in lines if line not in places]
    if unknown and (found := _relabel_imagenet(source, names)) is not None:
        return found
    if unknown:
        raise ValueError(
            f"{len(unknown)} of the {len(source.class_names)} classes of {source.name} are not "
            f"among the {len(names)} classes of the model: {', '.join(unknown[:10])}. The model's "
            f"classes are in classes.txt: {', '.join(names[:10])}. If both have the same classes "
            f"in the same order, under other names, move classes.txt away."
        )
    repeated = [line for line in lines if len(places[line]) > 1]
    if repeated:
        raise ValueError(
            f"classes.txt contains a name of {source.name} more than once: "
            f"{', '.join(repeated[:10])}. Use another name for each class, in classes.txt and in the "
            "folder."
        )
    return source.relabelled([places[line][0] for line in lines], names)


def relabel_sets(sets: LabelSets, names: Sequence[str]) -> LabelSets:
    """Returns the images of a test set with ImageNet's 1000 classes in the order of the model.

    Args:
        sets: ReaL or ObjectNet.
        names: Names of the classes of the model: ImageNet's WordNet ids, class numbers, or readable
            names.

    Raises:
        ValueError: If they are not ImageNet's 1000 classes.
    """
    classes = imagenet_classes(names)
    if classes is None:
        raise ValueError(
            f"{sets.source.name} has ImageNet's 1000 classes. The model's classes in classes.txt "
            f"are not: {', '.join(names[:10])}. If they are, in ImageNet's order under other names, "
            f"move classes.txt away."
        )
    if classes == sorted(classes):
        return sets
    places = _invert(classes)
    allowed = None if sets.allowed is None else tuple(places[label] for label in sets.allowed)
    return LabelSets(
        source=sets.source.relabelled(places, names),
        right=tuple(tuple(places[label] for label in labels) for labels in sets.right),
        allowed=allowed,
        is_complete=sets.is_complete,
    )


def _relabel_imagenet(source: Source, names: Sequence[str]) -> Source | None:
    """Matches ImageNet's classes by their ids or numbers; None if these are other classes."""
    classes = imagenet_classes(names)
    if classes is None:
        return None
    places = _invert(classes)
    if all(is_wordnet_id(name) for name in source.class_names):
        return by_wordnet_id(source).relabelled(places, names)
    by_number = {str(label): place for label, place in enumerate(places)}
    if all(name in by_number for name in source.class_names):
        return source.relabelled([by_number[name] for name in source.class_names], names)
    return None


def _invert(classes: Sequence[int]) -> list[int]:
    """Returns the index of each class in a permutation."""
    places = [0] * len(classes)
    for place, label in enumerate(classes):
        places[label] = place
    return places
