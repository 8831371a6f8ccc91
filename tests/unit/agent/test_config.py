# SPDX-License-Identifier: Apache-2.0
"""One clear error for whatever is wrong in a configuration, with the field's path and a remedy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotgpu_agent.config import Config, load, parse
from spotgpu_agent.errors import ConfigError
from spotgpu_agent.model import AtDeadline, OnHold, ReleaseOn, ReturnOn
from spotgpu_agent.resolve import Container, check_containers, check_devices, snapshots
from spotgpu_agent.units import duration_ns, size_bytes

GOOD: dict[str, Any] = {
    "node": "n1",
    "containerd": {"socket": "/run/containerd/containerd.sock", "namespace": "k8s.io"},
    "state_dir": "/var/lib/spotgpu",
    "listen": "127.0.0.1:9464",
    "policy": {"deadline": "5s", "on_hold": "notify", "evict_grace": "1s", "allow_holders": ["/exporter"]},
    "owners": [
        {
            "name": "dev-box",
            "container": {"id": "owner"},
            "devices": ["GPU-a", "GPU-b"],
            "policy": {
                "at_deadline": "eio",
                "return_on": "any",
                "release_on": "empty",
                "memory_slack": "1GiB",
            },
            "spot": [
                {"container": {"labels": {"spot": "true"}}},
                {"container": {"id": "s2"}, "devices": ["GPU-b"]},
            ],
        },
        {
            "name": "two",
            "container": {"id": "o2"},
            "devices": ["GPU-c"],
            "spot": [{"container": {"id": "s3"}}],
        },
    ],
}


def test_a_full_configuration_is_read_with_defaults_and_overrides() -> None:
    config = parse(copy.deepcopy(GOOD))
    first, second = config.owners
    assert config.containerd_namespace == "k8s.io"
    assert config.listen == "127.0.0.1:9464"
    assert (config.orphan_ms, config.heartbeat_ms) == (3000, 5000)
    assert first.policy.deadline_ns == 5_000_000_000
    assert first.policy.at_deadline is AtDeadline.EIO
    assert first.policy.return_on is ReturnOn.ANY
    assert first.policy.release_on is ReleaseOn.EMPTY
    assert first.policy.memory_slack == 1 << 30
    assert first.policy.evict_grace_ns == 1_000_000_000
    assert second.policy.on_hold is OnHold.NOTIFY
    assert second.policy.memory_slack == 64 << 20
    assert first.spot[0].devices == ("GPU-a", "GPU-b")
    assert first.spot[1].devices == ("GPU-b",)


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with one field set; `-` as the last part's prefix deletes it."""
    data = copy.deepcopy(GOOD)
    at: Any = data
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    for part in parents:
        at = at[part]
    at[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "field", "says"),
    [
        ("owners", [], "owners", "at least one"),
        ("owner", [], "owner", "did you mean owners"),
        ("vendor", "amd", "vendor", "nvidia"),
        ("listen", "9464", "listen", "127.0.0.1:9464"),
        ("listen", "127.0.0.1:99999", "listen", "127.0.0.1:9464"),
        ("state_dir", "var", "state_dir", "absolute"),
        ("containerd/sokcet", "x", "containerd.sokcet", "did you mean socket"),
        ("policy/deadline", 10, "policy.deadline", "10s"),
        ("policy/deadline", "0s", "policy.deadline", "between"),
        ("policy/deadline", "2h", "policy.deadline", "between"),
        ("policy/deadline", "500ms", "policy.evict_grace", "shorter than the deadline"),
        ("policy/on_hold", "kill", "policy.evict_grace", "set on_hold: notify"),
        ("policy/on_hold", "pause", "policy.on_hold", "kill, notify"),
        ("policy/memory_slack", "64MB", "policy.memory_slack", "64MiB"),
        ("policy/allow_holders", ["/"], "policy.allow_holders[0]", "below the root"),
        ("policy/allow_holders", "x", "policy.allow_holders", "list"),
        ("owners/0/policy/orphan", "1s", "owners[0].policy.orphan", "set policy.orphan at the top"),
        ("owners/0/name", "a b", "owners[0].name", "letters"),
        ("owners/1/name", "dev-box", "owners[1].name", "owners[0]"),
        ("owners/0/devices", [], "owners[0].devices", "no device"),
        ("owners/0/devices", ["GPU-a", "0"], "owners[0].devices[1]", "UUID"),
        ("owners/0/devices", ["GPU-a", "GPU-a"], "owners[0].devices[1]", "twice"),
        ("owners/1/devices", ["GPU-b"], "owners[1].devices[0]", "one owner"),
        ("owners/0/spot", [], "owners[0].spot", "at least one"),
        ("owners/0/spot/1/devices", ["GPU-c"], "owners[0].spot[1].devices[0]", "not this owner's"),
        ("owners/0/container", {}, "owners[0].container", "one of id and labels"),
        (
            "owners/0/container",
            {"id": "a", "labels": {"b": "c"}},
            "owners[0].container",
            "one of id and labels",
        ),
        ("owners/0/container", {"labels": {"b": True}}, "owners[0].container.labels.b", "quotes"),
        ("owners/0/spot/1/container", {"id": "owner"}, "owners[0].spot[1].container", "its own spot"),
        ("owners/0", "dev", "owners[0]", "no mapping"),
    ],
)
def test_a_wrong_field_is_named_with_a_remedy(path: str, value: object, field: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(path, value))
    assert caught.value.field == field
    assert says in str(caught.value)
    assert caught.value.remedy
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("missing", ["name", "devices", "spot", "container"])
def test_a_missing_field_is_named(missing: str) -> None:
    data = copy.deepcopy(GOOD)
    del data["owners"][0][missing]
    with pytest.raises(ConfigError) as caught:
        parse(data)
    assert caught.value.field == f"owners[0].{missing}"


def test_a_file_that_is_not_there_or_no_yaml_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("owners: [")
    with pytest.raises(ConfigError, match="not YAML"):
        load(broken)
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not YAML"):
        load(broken)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
FIELDS = ["owners", "policy", "containerd", "listen", "owners/0", "owners/0/devices", "owners/0/spot/0"]


@settings(deadline=None)
@given(st.sampled_from(FIELDS), JSON)
def test_no_input_is_anything_but_a_configuration_or_a_config_error(path: str, value: object) -> None:
    remedies: list[str | None] = ["none needed"]
    try:
        assert isinstance(parse(changed(path, value)), Config)
    except ConfigError as error:
        remedies.append(error.remedy)
    assert all(remedies)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("10s", 10**10), ("1.5s", 1_500_000_000), ("500ms", 5 * 10**8), ("5m", 3 * 10**11), (0, 0)],
)
def test_durations(text: object, ns: int) -> None:
    assert duration_ns(text) == ns


@pytest.mark.parametrize("text", ["10", 10, "-1s", "1d", "", None, True, "s", "1e3s"])
def test_durations_without_a_known_unit_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="not like"):
        duration_ns(text)


def test_sizes() -> None:
    assert size_bytes("64MiB") == 64 << 20
    with pytest.raises(ValueError, match="not like"):
        size_bytes("64M")


# Against the node -------------------------------------------------------------------------------------------


def box(name: str, number: int, **fields: Any) -> Container:
    known = {"labels": {}, "pid": number, "cgroup": number, "path": f"/k8s.io/{name}", **fields}
    return Container(id=name, **known)


OWNERS = [box("owner", 1), box("o2", 2)]


def refused(containers: list[Container], self_path: str = "/agent") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_containers(parse(copy.deepcopy(GOOD)), containers, self_path)
    assert caught.value.remedy
    return caught.value


def test_fitting_containers_pass_also_when_no_spot_container_exists_yet() -> None:
    check_containers(parse(copy.deepcopy(GOOD)), OWNERS, "/agent")
    check_containers(parse(copy.deepcopy(GOOD)), [*OWNERS, box("s3", 3)], "/agent")


def test_an_unknown_owner_container_is_named_with_what_there_is() -> None:
    error = refused([box("o2", 2)])
    assert error.field == "owners[0].container"
    assert "no container with id owner" in str(error)
    assert "there is: o2" in str(error)


def test_an_owner_that_does_not_run_is_refused() -> None:
    assert "does not run" in str(refused([box("owner", 0), box("o2", 2)]))


def test_an_owner_selector_that_fits_two_is_refused() -> None:
    config = parse(changed("owners/0/container", {"labels": {"app": "dev"}}))
    both = [box("a", 1, labels={"app": "dev"}), box("b", 3, labels={"app": "dev"}), box("o2", 2)]
    with pytest.raises(ConfigError, match="a, b all have app=dev"):
        check_containers(config, both, "/agent")


def test_an_owner_that_is_also_spot_is_refused() -> None:
    error = refused([box("owner", 1, labels={"spot": "true"}), box("o2", 2)])
    assert error.field == "owners[0].spot[0].container"
    assert "is the owner dev-box" in str(error)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"host_pids": True}, "shares the host's pid namespace"),
        ({"path": "/k8s.io/owner/inner"}, "shares a cgroup with the owner"),
        ({"path": "/"}, "has no cgroup of its own"),
    ],
)
def test_an_unfit_spot_container_is_refused(fields: dict[str, Any], says: str) -> None:
    assert says in str(refused([*OWNERS, box("s2", 9, **fields)]))


def test_an_owner_around_the_agent_is_refused() -> None:
    assert "holds this agent" in str(refused(OWNERS, "/k8s.io/owner/sub"))


def test_a_device_this_node_lacks_is_named_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        check_devices(parse(copy.deepcopy(GOOD)), ["GPU-a", "GPU-c"])
    assert caught.value.field == "owners[0].devices[1]"
    assert "GPU-a, GPU-c" in str(caught.value)


def test_snapshots_say_who_runs_and_who_may_be_lent_to() -> None:
    running = [box("owner", 1), box("s2", 5, labels={"spot": "true"}), box("s9", 6, labels={"spot": "true"})]
    bad = box("s3", 7, host_pids=True)
    first, second = snapshots(parse(copy.deepcopy(GOOD)), [*running, bad])
    assert first.container is not None
    assert [(spot.id, spot.devices) for spot in first.spots] == [
        ("s2", ("GPU-a", "GPU-b")),
        ("s9", ("GPU-a", "GPU-b")),
    ]
    assert second.container is None, "o2 does not run"
    assert [spot.refused for spot in second.spots] == ["shares the host's pid namespace"]
