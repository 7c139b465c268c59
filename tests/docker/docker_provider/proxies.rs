//! Proxies of environments with services.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout_environment::{Environment, ExecCommand};

use crate::docker_provider::compose::{created, open, request};
use crate::docker_provider::fixture::{BASE, CommandOutput, destroy, output, shell};

fn env(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let variables = variables.iter();
    variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The hosts without a proxy that a command with these variables sees.
async fn exempt(environment: &dyn Environment, variables: &[(&str, &str)]) -> String {
    let command = ExecCommand { env: env(variables), ..shell("echo \"$NO_PROXY $no_proxy\"") };
    let printed = Arc::new(CommandOutput::default());
    let exit = environment.exec(command, printed.clone()).await;
    assert_eq!(exit.unwrap_or_else(|failure| panic!("{}", failure.chain())).code, 0);
    printed.stdout()
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_do_not_lead_to_services_of_a_task() {
    let Some(lab) = open().await else { return };
    let compose = format!(
        "services:\n  main:\n    extra_hosts: ['old.test:10.0.0.9']\n  db:\n    image: {BASE}\n    \
         command: [sleep, infinity]\n    container_name: old-name\n    hostname: db1\n    \
         environment: {{HTTP_PROXY: '${{HTTP_PROXY}}', NO_PROXY: of-db}}\n    networks: {{default: \
         {{aliases: [sql]}}}}\n  plain: {{image: {BASE}, command: [sleep, infinity]}}\n"
    );
    let dockerfile = format!("FROM {BASE}\n");
    let files = [("Dockerfile", dockerfile.as_str()), ("docker-compose.yaml", compose.as_str())];
    let mut request = request(&lab, &files).await.expect("prepared");
    let image = request.image.clone();
    request.env = env(&[("HTTP_PROXY", "http://p.test:1"), ("NO_PROXY", "corp.test")]);
    let environment = created(&lab, request).await;
    let main = environment.as_ref();
    let hosts = "localhost,127.0.0.1,::1,db,db1,main,old-name,old.test,plain,sql";
    let list = |own: &str| format!("{own},{hosts} {own},{hosts}\n");
    assert_eq!(exempt(main, &[]).await, list("corp.test"));
    let of_script = [("https_proxy", "http://q.test:1"), ("no_proxy", "of-script")];
    let both = format!("corp.test,{hosts},of-script");
    assert_eq!(exempt(main, &of_script).await, format!("{both} {both}\n"));
    let db = environment.service("db").expect("a service");
    assert_eq!(exempt(db, &[]).await, list("of-db"));
    assert_eq!(output(db, "echo $HTTP_PROXY").await, "http://p.test:1\n");
    let plain = environment.service("plain").expect("a service");
    assert_eq!(output(plain, "echo \"[$HTTP_PROXY$NO_PROXY]\"").await, "[]\n");
    destroy(environment).await;
    lab.remove_image(&image).await;
}
