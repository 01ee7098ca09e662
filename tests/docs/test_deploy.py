"""What `deploy/` has for other systems fits together, and fits the commands and routes that there are."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tracecvr.cli.commands import app
from tracecvr.online.service import app as service

ROOT = Path(__file__).parents[2]
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/tracecvr.yaml").read_text()))
WORKLOADS = [one for one in OBJECTS if one["kind"] in ("StatefulSet", "Deployment")]


def options(command: str) -> set[str]:
    """Flags of a command."""
    group: Any = typer.main.get_command(app)
    return {
        flag for parameter in group.commands[command].params for flag in (*parameter.opts, *parameter.secondary_opts)
    }


def check_command(words: list[str]) -> None:
    assert words[0] == "tracecvr"
    flags = {word for word in words[2:] if word.startswith("--")}
    assert flags <= options(words[1])


def test_every_kind_of_object_is_there() -> None:
    assert sorted(one["kind"] for one in OBJECTS) == sorted(
        ["PersistentVolumeClaim", "StatefulSet", "Service", "Deployment", "Service"]
    )
    names = [(one["kind"], one["metadata"]["name"]) for one in OBJECTS]
    assert len(set(names)) == len(names)
    groups = {"StatefulSet": "apps/v1", "Deployment": "apps/v1"}
    assert all(one["apiVersion"] == groups.get(one["kind"], "v1") for one in OBJECTS)


def test_the_unit_calls_a_command_that_there_is() -> None:
    (line,) = re.findall(r"^ExecStart=\S+/(tracecvr .*)$", (ROOT / "deploy/tracecvr.service").read_text(), re.MULTILINE)
    check_command(line.split())


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one["metadata"]["name"])
def test_a_workload_fits_its_parts(workload: dict[str, Any]) -> None:
    spec = workload["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert spec["selector"]["matchLabels"] == labels
    assert container["image"] == f"tracecvr:{version('tracecvr')}"
    check_command(container["args"])
    (port,) = container["ports"]
    assert container["args"][container["args"].index("--port") + 1] == str(port["containerPort"])
    routes = set(re.findall(r'app.get\("(/[a-z]+)"', Path(service.__file__).read_text()))
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["path"] for probe in probes.values()} <= routes
    assert all(probe["port"] == port["name"] for probe in probes.values())
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    folders = tuple(mount["mountPath"] for mount in container["volumeMounts"])
    paths = [word for word in container["args"] if word.startswith("/")]
    assert paths
    assert all(path.startswith(folders) for path in paths)
    user = re.search(r"--uid (\d+)", (ROOT / "deploy/Containerfile").read_text())
    assert user is not None
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == int(user[1])
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_services_find_their_pods() -> None:
    pods = [one["spec"]["template"] for one in WORKLOADS]
    for one in (one for one in OBJECTS if one["kind"] == "Service"):
        chosen = [pod for pod in pods if one["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
        assert len(chosen) == 1
        names = {port["name"] for port in chosen[0]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in one["spec"]["ports"]} <= names
    writer = next(one for one in WORKLOADS if one["kind"] == "StatefulSet")
    assert writer["spec"]["replicas"] == 1
    assert writer["spec"]["serviceName"] in [one["metadata"]["name"] for one in OBJECTS if one["kind"] == "Service"]


def test_the_dag_calls_commands_that_there_are() -> None:
    tree = ast.parse((ROOT / "deploy/airflow_dag.py").read_text())
    commands = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "/room" for part in word.value.values)
        for word in ast.walk(tree)
        if isinstance(word, ast.keyword) and word.arg == "bash_command" and isinstance(word.value, ast.JoinedStr)
    ]
    assert [command.split()[1] for command in commands] == ["prepare", "run", "export"]
    for command in commands:
        check_command(command.split())
