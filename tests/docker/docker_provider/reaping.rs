//! Reaping: only objects whose owner is proven dead.

use std::collections::HashMap;

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::CreateContainerOptions;
use rollout_environment::{DeadOwners, Owner, Provider as _};

use crate::docker_provider::fixture::{BASE, DockerFixture, owner};

/// Treats the owners of one boot as dead.
struct DeadBootOwners(String);

impl DeadOwners for DeadBootOwners {
    fn is_dead(&self, owner: &Owner) -> bool {
        owner.boot_id == self.0
    }
}

/// Creates a container without starting it, as left by a worker that died in between.
async fn create_unstarted(lab: &DockerFixture, name: &str, owner: &str) {
    let labels = HashMap::from([("dev.rollout.owner".to_owned(), owner.to_owned())]);
    let body = ContainerCreateBody {
        image: Some(BASE.to_owned()),
        cmd: Some(vec!["/bin/true".to_owned()]),
        labels: Some(labels),
        ..Default::default()
    };
    let options = CreateContainerOptions { name: Some(name.to_owned()), ..Default::default() };
    lab.docker.create_container(Some(options), body).await.expect("created");
}

#[tokio::test(flavor = "multi_thread")]
async fn reaping_removes_only_objects_of_dead_owners() {
    let Some(lab) = DockerFixture::open().await else { return };
    let boot = format!("reaping-{}", std::process::id());
    let json = |owner: &Owner| serde_json::to_string(owner).expect("plain data");
    let dead = Owner { boot_id: boot.clone(), ..owner() };
    let other_user = Owner { uid: dead.uid + 1, ..dead.clone() };
    let name = |what: &str| format!("rollout-{what}-{}", std::process::id());
    let (removable, unprefixed) = (name("half"), format!("theirs-{}", std::process::id()));
    create_unstarted(&lab, &removable, &json(&dead)).await;
    create_unstarted(&lab, &name("alive"), &json(&owner())).await;
    create_unstarted(&lab, &name("user"), &json(&other_user)).await;
    create_unstarted(&lab, &name("kept-x"), &json(&dead)).await;
    create_unstarted(&lab, &name("garbled"), "{").await;
    create_unstarted(&lab, &unprefixed, &json(&dead)).await;

    let reaped = lab.provider.reap(&DeadBootOwners(boot)).await.expect("listed");
    let rest = [name("alive"), name("user"), name("kept-x"), name("garbled"), unprefixed];
    let options =
        bollard::query_parameters::RemoveContainerOptions { force: true, ..Default::default() };
    let mut left = Vec::new();
    for name in &rest {
        left.push(lab.docker.remove_container(name, Some(options.clone())).await.is_ok());
    }
    assert_eq!(reaped.removed, std::slice::from_ref(&removable));
    assert!(reaped.failed.is_empty() && reaped.kept >= 5, "{reaped:?}");
    assert_eq!(left, [true; 5]);
    assert!(lab.docker.inspect_container(&removable, None).await.is_err());
}
