"""The images of docker/Dockerfile: a folder for a volume exists there, and the image's user owns it.

A container engine creates a missing mount point, and an empty named volume at it, as root: the server could not write.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

DOCKER = Path(__file__).resolve().parents[3] / "docker"
CHART = DOCKER.parent / "helm" / "evenq"


class Stage:
    """Instructions of one `FROM ... AS name`, after those of the stages that it is from."""

    def __init__(self, above: Stage | None) -> None:
        self.steps: list[tuple[str, str]] = list(above.steps) if above else []

    @property
    def user(self) -> str:
        return [rest for step, rest in self.steps if step == "USER"][-1]


def stages() -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    text = re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text())
    current = Stage(None)
    for line in text.splitlines():
        step, _, rest = line.strip().partition(" ")
        if step == "FROM":
            above, _, name = rest.partition(" AS ")
            current = found[name] = Stage(found.get(above))
        elif step and not step.startswith("#"):
            current.steps.append((step, rest))
    return found


def compose_volumes() -> list[tuple[str, str]]:
    """Target and path of each volume of compose.yaml."""
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"].values()
    mounted = {
        (service["build"]["target"], volume.split(":")[1])
        for service in services
        for volume in service.get("volumes", ())
    }
    assert mounted
    return sorted(mounted)


@pytest.mark.parametrize(("target", "path"), [*compose_volumes(), ("tables", "/tables")])
def test_the_user_of_an_image_owns_the_folder_of_its_volume(target: str, path: str) -> None:
    built = stages()
    owned = re.compile(rf"--from=(\w+) --chown={re.escape(built[target].user)} (\S+) {re.escape(path)}")
    copies = [match for step, rest in built[target].steps if step == "COPY" and (match := owned.fullmatch(rest))]
    assert copies, f"no COPY --from=... --chown={built[target].user} ... {path}"
    source, folder = copies[-1].groups()
    made = [rest for step, rest in built[source].steps if step == "RUN" and rest.startswith("mkdir ")]
    assert any(folder in rest.split() for rest in made), f"stage {source} does not make {folder}"


def test_the_folder_of_the_image_tables_is_the_one_that_the_chart_mounts() -> None:
    assert "{name: tables, mountPath: /tables}" in (CHART / "templates/tables/deployment.yaml").read_text()
