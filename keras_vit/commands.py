"""The commands of the command line: their flags, their words, and whom they call.

What the commands do is done elsewhere. A command imports what it needs when it runs, so that `info` answers without
Keras, which takes seconds to load. The frame around them, with usage errors and exit codes, is `cli.py`.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from absl import flags, logging

from keras_vit import info
from keras_vit.arguments import NEW_SIZE, define_pixels, parse_size, require_folders, show_progress
from keras_vit.quiet import quiet_start
from keras_vit.writing import by_reason, one_line

PROGRAM = "python -m keras_vit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One command of the command line.

    Attributes:
        run: Takes the positional arguments and the flags, returns the exit code.
        define: Adds the flags.
        arguments: What the positional arguments are called.
        counts: How few and how many of them there may be.
        summary: One line for the overview.
        example: A whole command line.
        details: For `--help`.
    """

    run: Callable[[list[str], flags.FlagValues], int]
    define: Callable[[flags.FlagValues], None]
    arguments: str
    counts: tuple[int, float]
    summary: str
    example: str
    details: str


def _define_info(values: flags.FlagValues) -> None:
    flags.DEFINE_string("image_size", "224", NEW_SIZE, flag_values=values)
    flags.DEFINE_integer("classes", 1000, "Outputs of the head; 0 for no head.", lower_bound=0, flag_values=values)


def _info(arguments: list[str], values: flags.FlagValues) -> int:
    size, classes = parse_size(values.image_size), values.classes or None
    print(info.model_card(arguments[0], size, classes) if arguments else info.models_table(size, classes))
    return 0


def _define_verify(values: flags.FlagValues) -> None:
    flags.DEFINE_string("model", None, "What the file should be. Needed for a tag.", flag_values=values)


def _verify(arguments: list[str], values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit import verify
    return 0 if verify.verify(arguments[0], values.model) else 1


def _define_predict(values: flags.FlagValues) -> None:
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    flags.DEFINE_string("weights", None, "Tag, file or URL. Default: imagenet, of a name.", flag_values=values)
    flags.DEFINE_integer("top", 5, "Classes to name.", lower_bound=1, flag_values=values)
    kinds = "text; csv: a row for each guess; json: an object on a line for each photo."
    flags.DEFINE_enum("format", "text", ["text", "csv", "json"], kinds, flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)


def _predict(arguments: list[str], values: flags.FlagValues) -> int:
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit import classifier, keras_file, pixels, predict
    photos, left_out = predict.find_photos(arguments)
    is_file = keras_file.is_file(values.model)
    weights = values.weights or (None if is_file else "imagenet")
    model = classifier.build(values.model, weights, size, values.pixels)
    if is_file:
        print(pixels.described(model, size or model.input_shape[1:3]), file=sys.stderr)
    names = classifier.class_names(weights or values.model)

    def progress(done: int | None) -> None:
        show_progress(done, len(photos))

    answers = predict.predict(model, photos, values.top, progress, names, size)
    return 1 if predict.tell(answers, values.format, progress, left_out) else 0


def _define_quickstart(values: flags.FlagValues) -> None:
    flags.DEFINE_string("output", "quickstart_output", "Folder for what it makes.", flag_values=values)


def _quickstart(arguments: list[str], values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit import quickstart
    quickstart.main(values.output)
    return 0


def _define_finetune(values: flags.FlagValues) -> None:
    flags.DEFINE_string("data", None, "Folder: <class>/*, or train/<class>/* and test/<class>/*.", flag_values=values)
    flags.DEFINE_string("output", None, "Folder for the model and its report.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    weights = "Tag of the catalog, file, URL, or none; of a name."
    flags.DEFINE_string("weights", "imagenet21k", weights, flag_values=values)
    define_pixels(values)
    size = "Side in pixels. Default: 384, or that of the weights unless it is 224."
    flags.DEFINE_integer("image_size", None, size, lower_bound=1, flag_values=values)
    steps = "Updates. Default: 500 for fewer than 20,000 images, 10,000 for fewer than 500,000, else 20,000."
    flags.DEFINE_integer("steps", None, steps, lower_bound=1, flag_values=values)
    batch = "Images of an update. Default: 512, or 32 without an accelerator; fewer where there are fewer."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)
    flags.DEFINE_float("learning_rate", 0.01, "The peak of the schedule.", lower_bound=0.0, flag_values=values)
    flags.DEFINE_integer("seed", 0, "Of order, crops and dropout.", lower_bound=0, flag_values=values)


def _finetune(arguments: list[str], values: flags.FlagValues) -> int:
    require_folders(values, "data", "output")
    with quiet_start():
        from keras_vit import train
        from keras_vit.train import transfer
    logging.set_verbosity(logging.WARNING)
    try:
        done = transfer.finetune(
            values.model,
            values.data,
            values.output,
            weights=None if values.weights.lower() == "none" else values.weights,
            image_size=values.image_size,
            pixels=values.pixels,
            steps=values.steps,
            batch_size=values.batch_size,
            learning_rate=values.learning_rate,
            seed=values.seed,
        )
    except train.Stopped as stopped:
        print(stopped, file=sys.stderr)
        return train.EXIT_STOPPED
    except train.Diverged as diverged:
        raise ValueError(str(diverged)) from diverged
    print(f"{done.accuracy:.2%} of the validation images named correctly. How to use the model: {done.report}")
    return 0


def _define_evaluate(values: flags.FlagValues) -> None:
    flags.DEFINE_string("data", None, "Folder of images, or tfds:NAME:SPLIT. Must be given.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    flags.DEFINE_string("weights", None, "Tag, file or URL. Default: imagenet, of a name.", flag_values=values)
    flags.DEFINE_string("output", None, "Folder for a report with tables and pictures.", flag_values=values)
    flags.DEFINE_string("real", None, "real.json of ImageNet ReaL.", flag_values=values)
    flags.DEFINE_bool("objectnet", False, "The folder is ObjectNet's.", flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)
    crops = "resize: the whole image; resize_shorter: the middle."
    flags.DEFINE_enum("crop", "resize", ["resize", "resize_shorter"], crops, flag_values=values)
    batch = "Images of a step. Default: 64 of 224 x 224 pixels, more of smaller ones."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)
    flags.DEFINE_bool("strict", False, "An image that cannot be read is an error.", flag_values=values)
    kinds = ["auto", "one", "mirrored", "multi_worker", "tpu"]
    flags.DEFINE_enum("devices", "auto", kinds, "Where to compute.", flag_values=values)
    precisions = ["float32", "mixed_bfloat16", "mixed_float16"]
    flags.DEFINE_enum("precision", "float32", precisions, "In which precision.", flag_values=values)


def _evaluate(arguments: list[str], values: flags.FlagValues) -> int:
    require_folders(values, "data")
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit import measure
        from keras_vit.devices import DevicesConfig
    logging.set_verbosity(logging.WARNING)
    is_file = values.model.endswith(".keras")
    measure.measure(
        values.model,
        values.data,
        weights=values.weights or (None if is_file else "imagenet"),
        output=values.output,
        real=values.real,
        is_objectnet=values.objectnet,
        image_size=size,
        pixels=values.pixels,
        eval_crop=values.crop,
        batch_size=values.batch_size,
        devices=DevicesConfig(kind=values.devices, precision=values.precision),
        strict=values.strict,
    )
    return 0


def _define_analyze(values: flags.FlagValues) -> None:
    flags.DEFINE_string("images", None, "Folder of photographs. Must be given.", flag_values=values)
    flags.DEFINE_string("output", None, "Folder for the report. Must be given.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    weights = "Tag, file, URL, or none for random ones. Default: imagenet, of a name."
    flags.DEFINE_string("weights", None, weights, flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)
    flags.DEFINE_integer("photos", 8, "How many are drawn; all are counted.", lower_bound=1, flag_values=values)
    batch = "Photos of a step. Default: 16, fewer where there are many patches."
    flags.DEFINE_integer("batch_size", None, batch, lower_bound=1, flag_values=values)


def _analyze(arguments: list[str], values: flags.FlagValues) -> int:
    require_folders(values, "images", "output")
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit import inspection
    logging.set_verbosity(logging.WARNING)
    is_file = values.model.endswith(".keras")
    done = inspection.inspect(
        values.model,
        values.images,
        values.output,
        weights=values.weights or (None if is_file else "imagenet"),
        image_size=size,
        pixels=values.pixels,
        num_shown=values.photos,
        batch_size=values.batch_size,
        progress=show_progress,
    )
    for photo in done.photos:
        if photo.problem:
            print(f"cannot read {one_line(photo.name)}: {one_line(photo.problem)}", file=sys.stderr)
    if done.left_out:
        print(by_reason(done.left_out), file=sys.stderr)
    print(*filter(None, [done.taken, done.report]), sep="\n")
    return 0


def _define_export(values: flags.FlagValues) -> None:
    flags.DEFINE_string("output", None, "Folder of the model; a version of it is added.", flag_values=values)
    flags.DEFINE_string("check", None, "Folder, version or file to check instead.", flag_values=values)
    flags.DEFINE_string("model", "ViT_B16", f"See `{PROGRAM} info`; or a file model.keras.", flag_values=values)
    flags.DEFINE_string("weights", None, "Tag, file or URL. Default: imagenet, of a name.", flag_values=values)
    formats = "saved_model, tflite, onnx, openvino; several with commas."
    flags.DEFINE_list("format", "saved_model", formats, flag_values=values)
    images = "Folder of photos or of classes, or tfds:NAME:SPLIT. Default: generated pictures."
    flags.DEFINE_string("images", None, images, flag_values=values)
    flags.DEFINE_integer("num_images", 100, "How many of them.", lower_bound=1, flag_values=values)
    flags.DEFINE_string("image_size", None, f"{NEW_SIZE} Default: that of the weights.", flag_values=values)
    define_pixels(values)
    flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "Of a SavedModel.", flag_values=values)
    flags.DEFINE_bool("attention", False, "A SavedModel can be asked for its attention.", flag_values=values)
    flags.DEFINE_bool("any_size", False, "A SavedModel takes images of all sizes.", flag_values=values)
    flags.DEFINE_integer("top", 5, "Classes that a SavedModel names.", lower_bound=1, flag_values=values)
    flags.DEFINE_list("flavours", None, "Of TFLite; see --help. Default: all.", flag_values=values)
    flags.DEFINE_bool("fixed_batch", False, "TFLite takes one image at a time.", flag_values=values)
    flags.DEFINE_bool("preprocessing", False, "TFLite takes pixels from 0 to 255.", flag_values=values)
    agreement = "TFLite files that agree on fewer images are not written."
    flags.DEFINE_float("min_agreement", 0.95, agreement, 0.0, 1.0, flag_values=values)


def _export(arguments: list[str], values: flags.FlagValues) -> int:
    if values.check is not None:
        return _check_export(values)
    require_folders(values, "output")
    size = parse_size(values.image_size)
    with quiet_start():
        from keras_vit import delivery
    logging.set_verbosity(logging.WARNING)
    names = ("precision", "attention", "any_size", "top", "fixed_batch", "preprocessing", "min_agreement")
    options = {name: values[name].value for name in names} | ({"flavours": values.flavours} if values.flavours else {})
    is_file = values.model.endswith(".keras")
    problems = delivery.deliver(
        values.model,
        values.output,
        delivery.Wanted(formats=values.format, **options),
        weights=values.weights or (None if is_file else "imagenet"),
        images=values.images,
        image_size=size,
        pixels=values.pixels,
        num_images=values.num_images,
    )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _check_export(values: flags.FlagValues) -> int:
    with quiet_start():
        from keras_vit import acceptance
    logging.set_verbosity(logging.WARNING)
    failed = 0
    for checked in acceptance.check(values.check, images=values.images, num_images=values.num_images):
        failed += bool(checked.problem)
        print(checked.text(), flush=True)
    return 1 if failed else 0


COMMANDS = {
    "quickstart": Command(
        run=_quickstart,
        define=_define_quickstart,
        arguments="",
        counts=(0, 0),
        summary="pre-train, fine-tune, export and ask a small model, in minutes, without a download",
        example=f"{PROGRAM} quickstart",
        details="The whole way from fractals to an answer about a digit of scikit-learn's.",
    ),
    "info": Command(
        run=_info,
        define=_define_info,
        arguments="[MODEL]",
        counts=(0, 1),
        summary="size, cost and published weights of a model, or the table of all models",
        example=f"{PROGRAM} info ViT_B16 --image_size=384",
        details="Closed forms and tables: nothing is built or downloaded.",
    ),
    "predict": Command(
        run=_predict,
        define=_define_predict,
        arguments="PHOTO...",
        counts=(1, float("inf")),
        summary="the most likely classes of photographs, from files and folders",
        example=f"{PROGRAM} predict cat.jpg holiday/ --model=ViT_B16 --weights=imagenet",
        details=(
            "Photographs are resized to the model, not cropped. Names of your own classes are read from classes.txt\n"
            "beside the weights or the file model.keras. Scores are probabilities (softmax) that add up to 1;\n"
            "of the 21,843 classes of ImageNet-21k, which overlap, each has a probability of its own (sigmoid).\n"
            "What cannot be read is reported, the others are answered, and the exit code is 1. --format=csv has the\n"
            "columns file, rank, class, score, problem; --format=json has an object on a line for each photo, of\n"
            "file, guesses and problem. Answers go to stdout, all else to stderr. Exit codes: 0 every photo is\n"
            "answered, 1 a photo or the model cannot be read, 2 wrong flags."
        ),
    ),
    "evaluate": Command(
        run=_evaluate,
        define=_define_evaluate,
        arguments="",
        counts=(0, 0),
        summary="how often a classifier is right on a test set, every image counted once",
        example=f"{PROGRAM} evaluate --data=imagenet/val --model=ViT_B16 --weights=imagenet --output=report",
        details=(
            "--data has one folder of images for each class: ImageNet's WordNet ids, ImageNet-v2's numbers, or the\n"
            "classes in classes.txt beside the weights. With --real=real.json: ImageNet ReaL. Published numbers stand\n"
            "below ours. Images that cannot be read are named and counted, or end it with --strict."
        ),
    ),
    "analyze": Command(
        run=_analyze,
        define=_define_analyze,
        arguments="",
        counts=(0, 0),
        summary="what a model looks at in your photographs, and what its parts have learned, on one page",
        example=f"{PROGRAM} analyze --images=holiday --output=report --model=ViT_B16 --weights=imagenet",
        details=(
            "report.html in --output shows the attention over some of the photos, how far each head looks, filters,\n"
            "positions, and what the model costs; every number lies beside it as CSV. It needs no network and is one\n"
            "file. What a model does not have, such as the attention of a ResNet, is left out, and the page says so.\n"
            "Photos that cannot be read are named and left out."
        ),
    ),
    "finetune": Command(
        run=_finetune,
        define=_define_finetune,
        arguments="",
        counts=(0, 0),
        summary="train a model to tell the classes of your own images apart",
        example=f"{PROGRAM} finetune --data=flowers --output=flowers_vit --model=ViT_B16",
        details=(
            "--data has one folder of images for each class, of which a tenth is held out to measure on, or has\n"
            "such folders in `train` and in `test`. The defaults are the paper's. report.md in --output explains what\n"
            "came out: the model, its accuracy, its mistakes, and how to use it. The same command goes on where it\n"
            "stopped; SIGTERM and Ctrl-C save the state first (exit code 75)."
        ),
    ),
    "export": Command(
        run=_export,
        define=_define_export,
        arguments="",
        counts=(0, 0),
        summary="a model as a SavedModel, TFLite, ONNX or OpenVINO, and the proof that the file is the model",
        example=f"{PROGRAM} export --model=ViT_B16 --format=saved_model,tflite --output=saved_models/vit_b16",
        details=(
            "Each file is loaded and run in a process without Keras, and compared with the model on --images.\n"
            "TensorFlow Serving reads --output/1, --output/2 ...; other formats lie in folders beside them. Flavours\n"
            "of TFLite: float32, float16, dynamic_int8, int8, weight_only_int8. --check=FOLDER does the comparison\n"
            "again, later or elsewhere. What fails is named, the rest is written, and the exit code is 1."
        ),
    ),
    "verify": Command(
        run=_verify,
        define=_define_verify,
        arguments="FILE",
        counts=(1, 1),
        summary="prove that a checkpoint file is whole and that the Keras model computes what it says",
        example=f"{PROGRAM} verify ViT-B_16.npz --model=ViT_B16",
        details=(
            "FILE is a path, a URL, or a tag of the catalog (then with --model). An independent forward pass in NumPy\n"
            "is compared with the Keras model, layer by layer. The exit code is 1 unless the verdict is VERIFIED."
        ),
    ),
}
