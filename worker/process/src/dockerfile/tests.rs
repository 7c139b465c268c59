use rollout_environment::build_context::{ContextEntry, ContextKind};

use super::*;

fn lines(text: &str) -> Vec<(usize, String)> {
    check(text).into_iter().map(|one| (one.line, one.instruction)).collect()
}

#[test]
fn dockerfile_supported_instructions_become_recipe() {
    let recipe = SandboxRecipe::read(
        "# syntax=docker/dockerfile:1\n\
         ARG BASE=python\n\
         FROM ${BASE}:3.12 AS base\n\
         ARG DIR=app\n\
         LABEL a=b\n\
         ENV A=1 B=\"two words\" C='$A'\n\
         env LEGACY  some $A value\n\
         WORKDIR /$DIR\n\
         WORKDIR sub\n\
         COPY --chmod=0755 a.txt \\\n\
         # a comment in between\n\
         \n\
           b*.sh ./bin/\n\
         ADD [\"with blank\", \"/x y\"]\n\
         USER root\n\
         ENV PATH=/opt/bin:$PATH D=${NOPE:-d$A} E=${A:+set} F=\\$A\n\
         CMD [\"x\"]\n",
    );
    assert_eq!(recipe.unsupported, []);
    assert_eq!(recipe.workdir, "/app/sub");
    let env: Vec<_> = recipe.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let path = format!("PATH=/opt/bin:{DEFAULT_PATH}");
    let expected =
        ["A=1", "B=two words", "C=$A", "D=d1", "E=set", "F=$A", "LEGACY=some 1 value", &path];
    assert_eq!(env, expected);
    let copy = |line, add, sources: &[&str], target: &str, mode| {
        let sources = sources.iter().map(|s| (*s).to_owned()).collect();
        RecipeStep::Copy(CopyInstruction { line, add, sources, target: target.to_owned(), mode })
    };
    let expected = [
        RecipeStep::Dir("/app".to_owned()),
        RecipeStep::Dir("/app/sub".to_owned()),
        copy(10, false, &["a.txt", "b*.sh"], "/app/sub/bin/", Some(0o755)),
        copy(14, true, &["with blank"], "/x y", None),
    ];
    assert_eq!(recipe.steps, expected);
}

#[test]
fn dockerfile_unsupported_instruction_is_reported_with_line() {
    let text = "FROM a\n\
                RUN apt-get update \\\n  && true\n\
                USER agent\n\
                COPY --from=other /a /b\n\
                COPY <<EOF /x\nRUN inside\nEOF\n\
                ADD https://example.com/x /x\n\
                ADD data.tar.gz /data\n\
                COPY tool /usr/local/bin/\n\
                WORKDIR /proc/x\n\
                ONBUILD RUN x\n\
                RUNN x\n\
                COPY a\n\
                ENV A=${B:?no}\n\
                WORKDIR /usr/src/app\n\
                FROM b\n\
                EXPOSE 80\n";
    let expected = [
        (2, "RUN"),
        (4, "USER"),
        (5, "COPY"),
        (6, "COPY"),
        (9, "ADD"),
        (10, "ADD"),
        (11, "COPY"),
        (12, "WORKDIR"),
        (13, "ONBUILD"),
        (14, "RUNN"),
        (15, "COPY"),
        (16, "ENV"),
        (18, "FROM"),
    ];
    assert_eq!(lines(text), expected.map(|(line, name)| (line, name.to_owned())));
    assert_eq!(lines("# nothing\n"), [(1, "FROM".to_owned())]);
    let said = check("FROM a\nRUN x\n")[0].to_string();
    assert_eq!(said, "Dockerfile line 2: RUN: a process sandbox runs no build commands");
}

#[test]
fn dockerfile_earlier_stage_env_is_not_in_recipe() {
    let recipe = SandboxRecipe::read("# escape=`\nFROM a\nENV A=1 `\n  B=c:\\x\nFROM b\nENV C=2");
    assert_eq!(recipe.unsupported.len(), 1);
    assert!(!recipe.env.contains_key("A"), "a former stage is not the image");
    assert_eq!(recipe.env["C"], "2");
}

#[test]
fn dockerfile_deeply_nested_text_is_reported() {
    let nested = "${a:-".repeat(100_000);
    assert_eq!(lines(&format!("FROM a\nENV A={nested}")), [(2, "ENV".to_owned())]);
    let quotes = "\"".repeat(100_001);
    assert_eq!(lines(&format!("FROM a\nENV A={quotes}")), [(2, "ENV".to_owned())]);
}

#[test]
fn dockerfile_copy_sources_match_like_docker() {
    let entry = |path: &str, kind| ContextEntry { path: path.to_owned(), kind };
    let file = || ContextKind::File { executable: false };
    let entries = [
        entry("a", ContextKind::Dir),
        entry("a/one.txt", file()),
        entry("a/sub", ContextKind::Dir),
        entry("a/sub/two.txt", file()),
        entry("ab.txt", file()),
        entry("x[1].txt", file()),
    ];
    let found = |source: &str, is_dir| {
        let found = matching(&entries, source, is_dir)?;
        Some(
            found.into_iter().map(|(entry, to)| format!("{}>{to}", entry.path)).collect::<Vec<_>>(),
        )
    };
    let list = |items: &[&str]| Some(items.iter().map(|i| (*i).to_owned()).collect::<Vec<_>>());
    let inside = ["a/one.txt>one.txt", "a/sub>sub", "a/sub/two.txt>sub/two.txt"];
    assert_eq!(found("a", false), list(&inside));
    assert_eq!(found("./a/../a/", true), list(&inside));
    assert_eq!(found("a/*.txt", true), list(&["a/one.txt>one.txt"]));
    assert_eq!(found("/ab.txt", false), list(&["ab.txt>"]));
    assert_eq!(found("a?.t[a-z]t", true), list(&["ab.txt>ab.txt"]));
    assert_eq!(found("x\\[1].txt", true), list(&["x[1].txt>x[1].txt"]));
    assert_eq!(found("../..", true).map(|all| all.len()), Some(6));
    assert_eq!(found("missing*", true), None);
}
