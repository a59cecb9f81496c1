"""The files that the server is started with: that they parse, fit each other and what they are
meant for.
"""

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")  # whose messages tensorflow_serving is made of
pytest.importorskip("tensorflow_serving")

from google.protobuf import (  # noqa: E402
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    text_format,
)
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig  # noqa: E402

pytestmark = pytest.mark.tensorflow

FOLDER = Path(__file__).parents[2] / "experiments" / "serving"
# tensorflow-serving-api has no messages for the next two files; so their fields are written down
# here, with types and numbers. Sources: tensorflow/serving,
# tensorflow_serving/servables/tensorflow/session_bundle_config.proto and
# tensorflow_serving/config/monitoring_config.proto.
INT64, STRING, BOOL, MESSAGE = 3, 9, 8, 11
OPTIONAL, REPEATED = 1, 3
MESSAGES = {
    "Int64Value": [("value", 1, INT64, OPTIONAL, None)],
    "StringValue": [("value", 1, STRING, OPTIONAL, None)],
    "BatchingParameters": [
        ("max_batch_size", 1, MESSAGE, OPTIONAL, "Int64Value"),
        ("batch_timeout_micros", 2, MESSAGE, OPTIONAL, "Int64Value"),
        ("max_enqueued_batches", 3, MESSAGE, OPTIONAL, "Int64Value"),
        ("num_batch_threads", 4, MESSAGE, OPTIONAL, "Int64Value"),
        ("thread_pool_name", 5, MESSAGE, OPTIONAL, "StringValue"),
        ("allowed_batch_sizes", 6, INT64, REPEATED, None),
        ("pad_variable_length_inputs", 7, BOOL, OPTIONAL, None),
    ],
    "PrometheusConfig": [("enable", 1, BOOL, OPTIONAL, None), ("path", 2, STRING, OPTIONAL, None)],
    "MonitoringConfig": [("prometheus_config", 1, MESSAGE, OPTIONAL, "PrometheusConfig")],
}
# The flags of the server that compose.yaml uses. Source: tensorflow/serving, model_servers/main.cc.
FLAGS = """
    model_config_file model_config_file_poll_wait_seconds file_system_poll_wait_seconds
    allow_version_labels_for_unavailable_models enable_batching batching_parameters_file monitoring_config_file
    grpc_max_threads rest_api_num_threads rest_api_timeout_in_ms tensorflow_intra_op_parallelism
    per_process_gpu_memory_fraction
""".split()


def parsed(name: str, kind: str):
    """A file as the server reads it; unknown fields and wrong types are errors."""
    file = descriptor_pb2.FileDescriptorProto(
        name="serving.proto", package="serving", syntax="proto3"
    )
    for message, fields in MESSAGES.items():
        made = file.message_type.add(name=message)
        for field, number, type_, label, type_name in fields:
            made.field.add(
                name=field,
                number=number,
                type=type_,
                label=label,
                type_name=f".serving.{type_name}" if type_name else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    empty = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"serving.{kind}"))()
    return text_format.Parse((FOLDER / name).read_text(encoding="utf-8"), empty)


def models(text: str):
    return text_format.Parse(text, ModelServerConfig()).model_config_list.config


@pytest.fixture(scope="module")
def compose() -> dict:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))


def test_the_models_are_served_in_their_newest_version():
    (model,) = models((FOLDER / "models.config").read_text(encoding="utf-8"))
    assert (model.name, model.base_path, model.model_platform) == (
        "vit_b16",
        "/models/vit_b16",
        "tensorflow",
    )
    assert model.model_version_policy.latest.num_versions == 1


def test_the_lines_for_going_back_and_for_labels_work_when_they_are_uncommented():
    text = (FOLDER / "models.config").read_text(encoding="utf-8")
    newest = "    model_version_policy { latest { num_versions: 1 } }"
    assert text.count(newest) == 1
    back = re.sub(
        r"# (model_version_policy \{ specific \{ versions: 1 \} \})",
        r"\1",
        text.replace(newest, ""),
    )
    assert list(models(back)[0].model_version_policy.specific.versions) == [1]
    both = re.sub(
        r"# (model_version_policy.*versions: 2 \} \}|version_labels)",
        r"\1",
        text.replace(newest, ""),
    )
    assert list(models(both)[0].model_version_policy.specific.versions) == [1, 2]
    assert dict(models(both)[0].version_labels) == {"stable": 1, "canary": 2}


@pytest.mark.parametrize("name", ["batching.config", "batching_gpu.config"])
def test_batching_follows_the_rules_of_the_server(name):
    batching = parsed(name, "BatchingParameters")
    needed = {"max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"}
    assert needed <= {field.name for field, _ in batching.ListFields()}
    assert min(batching.max_batch_size.value, batching.num_batch_threads.value) >= 1
    sizes = list(batching.allowed_batch_sizes)
    assert sizes == sorted(set(sizes)) and (not sizes or sizes[-1] == batching.max_batch_size.value)


def test_a_misspelt_field_would_be_noticed(tmp_path, monkeypatch):
    (tmp_path / "batching.config").write_text("max_batchsize { value: 8 }")
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    with pytest.raises(text_format.ParseError, match="max_batchsize"):
        parsed("batching.config", "BatchingParameters")


def test_metrics_are_on():
    monitoring = json_format.MessageToDict(parsed("monitoring.config", "MonitoringConfig"))
    assert monitoring == {
        "prometheusConfig": {"enable": True, "path": "/monitoring/prometheus/metrics"}
    }


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_composition_starts_the_pinned_official_image_with_files_that_exist(compose, kind):
    service = compose["services"][kind]
    assert re.fullmatch(
        rf"tensorflow/serving:\$\{{TF_SERVING_VERSION:-\d+\.\d+\.\d+\}}{'-gpu' * (kind == 'gpu')}",
        service["image"],
    )
    assert service["profiles"] == [kind] and service["restart"] == "unless-stopped"
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    # the server has no authentication and no encryption
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert {port.rpartition(":")[2] for port in service["ports"]} == {"8500", "8501"}
    flags = dict(flag.removeprefix("--").split("=") for flag in service["command"])
    assert set(flags) <= set(FLAGS)
    files = [value for value in flags.values() if value.startswith("/config/")]
    assert len(files) == 3 and all((FOLDER / Path(value).name).is_file() for value in files)
    batching = parsed(Path(flags["batching_parameters_file"]).name, "BatchingParameters")
    assert int(flags["grpc_max_threads"]) >= 2 * batching.max_batch_size.value
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}


def test_only_one_of_the_two_asks_for_a_gpu(compose):
    reserved = {
        name: "reservations" in service["deploy"]["resources"]
        for name, service in compose["services"].items()
    }
    assert reserved == {"cpu": False, "gpu": True}


def test_the_health_check_asks_for_the_model_that_is_configured(compose):
    (model,) = models((FOLDER / "models.config").read_text(encoding="utf-8"))
    kind, program, option, script = compose["services"]["cpu"]["healthcheck"]["test"]
    assert (kind, program, option) == ("CMD", "bash", "-c")
    assert f"GET /v1/models/{model.name} HTTP/1.1" in script and shlex.split(script)
