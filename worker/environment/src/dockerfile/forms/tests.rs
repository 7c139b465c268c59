//! Tests of the forms that all builders read alike.

use super::UnclearForm::{
    Argument, ArgumentValue, BaseImage, BuilderVariable, Continuation, ControlCharacter,
    CopySource, Directive, EscapeDirective, Flag, Head, HereDocument, Isolation, List, Mount,
    SameArgument, StageName, Trigger, Word,
};
use super::*;
use crate::dockerfile::parse::LineRules;

/// The lines and forms of a text.
fn unclear(text: &str) -> Vec<(usize, UnclearForm)> {
    let file = Dockerfile::read(text);
    let places = unclear_text(text).into_iter().chain(unclear_places(&file));
    places.map(|place| (place.line, place.form)).collect()
}

#[test]
fn text_that_begins_in_an_unusual_way_is_unclear() {
    for (text, expected) in [
        ("#!/bin/sh\n# escape=`\nFROM a\n", (2, EscapeDirective)),
        ("# escape=\\x\nFROM a\n", (1, EscapeDirective)),
        ("# escape=\u{a0}\\\nFROM a\n", (1, EscapeDirective)),
        ("# a comment\n\n#\tEscape = `\nFROM a\n", (3, EscapeDirective)),
        ("\u{feff}  #escape=`\nFROM a\n", (1, EscapeDirective)),
        ("#\u{85}escape=`\nFROM a\n", (1, EscapeDirective)),
        ("# syntax=docker/dockerfile:1\u{a0}x\nFROM a\n", (1, Directive)),
        ("# check=skip=\u{e9}\nFROM a\n", (1, Directive)),
        ("FROM a\nRUN a\u{b}b\n", (2, ControlCharacter)),
        ("FROM a\rRUN b\n", (1, ControlCharacter)),
        ("FROM a\r\nRUN b\r\r\n", (2, ControlCharacter)),
        ("FROM a\nRUN <<E\n\u{1b}[0m\nE\n", (3, ControlCharacter)),
        ("FROM a\nRUN echo \u{85}\n", (2, ControlCharacter)),
        ("FROM a\0\n", (1, ControlCharacter)),
    ] {
        assert!(unclear(text).contains(&expected), "{text:?}: {:?}", unclear(text));
    }
}

/// Lines in unusual forms.
const UNUSUAL: &[(&str, UnclearForm)] = &[
    ("RUN a \\\\\nb", Continuation),
    ("COPY\u{a0}a /b", Head),
    ("\u{a0}COPY a /b", Head),
    ("COPY \u{2003}a /b", Head),
    ("RUN --mount=type=tmpfs,target=/\u{e0} true", Head),
    ("COPY --from=\"a\" b /c", Flag),
    ("COPY --fr\\om=a b /c", Flag),
    ("COPY --from a b /c", Flag),
    ("COPY --from= b /c", Flag),
    ("COPY -- --from=a b /c", Flag),
    ("COPY --from='a' b /c", Flag),
    ("RUN --mount=\"type=bind,from=a\" b", Flag),
    ("COPY --chown='$A' b /c", Flag),
    ("COPY --chown=\"a'b\" c /d", Flag),
    ("FROM --platform=$A\"64\" b", Flag),
    ("FROM --platform=\"$A\"64 b", Flag),
    ("FROM --platform=$\"A\" b", Flag),
    ("COPY --chown=$A\"b\" c /d", Flag),
    ("RUN --mount type=cache,target=/c true", Flag),
    ("COPY --from=$A b /c", CopySource),
    ("COPY --from=+1 b /c", CopySource),
    ("RUN --mount=type=bind,FROM=${A},target=/c true", CopySource),
    ("RUN --mount=from=,target=/c true", CopySource),
    ("RUN --mount=type=bind,target=$A true", Mount),
    ("RUN --mount=type=cache,id=c-${TARGETARCH},target=/c true", Mount),
    ("RUN --network=host true", Isolation),
    ("RUN --network=$A true", Isolation),
    ("RUN --security=insecure true", Isolation),
    ("RUN --device=h/gpu=all true", Isolation),
    ("ONBUILD RUN --network=host true", Isolation),
    ("RUN --network=\"host\" true", Isolation),
    ("RUN --security='insecure' true", Isolation),
    ("COPY --chown=$*:1 a /b", Flag),
    ("COPY --chown=10.0.0.1:5000/x--from a /b", Flag),
    ("COPY --chown--from=10.0.0.1:5000/x a /b", Flag),
    ("COPY --exclude=h/x--from=y a /b", Flag),
    ("ONBUILD COPY --chown=h/x--from a /b", Flag),
    ("COPY --chown=\"h/x--from\" a /b", Flag),
    ("COPY --exclude='h/x--from=y' a /b", Flag),
    ("COPY --chown=h/x--fr\"\"om a /b", Flag),
    ("COPY --platform=a b /c", Flag),
    ("ADD --from=a b /c", Flag),
    ("FROM --after=a b", Flag),
    ("FROM -- b", Flag),
    ("FROM --platform=linux/amd64 --platform=linux/arm64 a", Flag),
    ("FROM --after=\"a\" b", Flag),
    ("FROM a AS b$C", StageName),
    ("FROM a AS \"b\"", StageName),
    ("FROM \"a\" AS 'b'", StageName),
    ("FROM a AS 0", StageName),
    ("FROM a AS b c", StageName),
    ("FROM a AS", StageName),
    ("FROM \"a'b\"", BaseImage),
    ("FROM '$A'", BaseImage),
    ("FROM a\\b", BaseImage),
    ("FROM ${A#b}", BaseImage),
    ("FROM ${A+b}", BaseImage),
    ("FROM ${A:-${B:-c}}", BaseImage),
    ("FROM ${A:-\"b\"}", BaseImage),
    ("FROM $*a", BaseImage),
    ("FROM $\u{e9}a", BaseImage),
    ("FROM a\u{a0}AS b", BaseImage),
    ("FROM a$HTTP_PROXY", BuilderVariable),
    ("FROM ${TARGETSTAGE:+h:5000/}a", BuilderVariable),
    ("FROM --platform=linux/$BUILDKIT_X a", BuilderVariable),
    ("COPY a\\ b /c", Word),
    ("COPY \"a b\" /c", Word),
    ("COPY \"a'b\" /c", Word),
    ("COPY '$A' /c", Word),
    ("COPY $A\u{e9} /c", Word),
    ("COPY a\u{2028}b /c", Word),
    ("COPY [\"$A\u{e9}\", \"/c\"]", Word),
    ("COPY a\u{a0}b /c", Word),
    ("COPY a' /c", Word),
    ("COPY a`b /c", Word),
    ("ADD a/${B#c} /d", Word),
    ("ADD a/$* /d", Word),
    ("COPY $1 /d", Word),
    ("COPY [\"a\\u0062\", \"/c\"]", List),
    ("COPY [\"a\", 1]", List),
    ("COPY [\"a\", '/c']", List),
    ("COPY [\"<<E\", \"/c\"]", Word),
    ("COPY << E /c\nE", HereDocument),
    ("COPY <<E+1 /c\nE+1", HereDocument),
    ("ADD << E /c\nE", HereDocument),
    ("RUN cat <<E\\F\nEF", HereDocument),
    ("RUN cat <<$E\n$E", HereDocument),
    ("RUN cat <<E>/x\nE>/x", HereDocument),
    ("RUN echo $(( 1 << 2 ))\n2", HereDocument),
    ("RUN echo \u{663}<<E ${A#b}\nE", HereDocument),
    ("RUN echo 'a <<E\nE", HereDocument),
    ("RUN echo ${A%%.*} <<E\nE", HereDocument),
    ("RUN echo ${A}<<E\nE", HereDocument),
    ("RUN cat <<<\"${A%%.*}\" <<E\nE", HereDocument),
    ("RUN echo ${A#b} <<<<E", HereDocument),
    ("RUN echo \"\"<<E\nE", HereDocument),
    ("RUN cat\u{2003}<<E\nE", HereDocument),
    ("RUN [\"a\", \"\\ud800\" <<E\nE", HereDocument),
    ("ONBUILD RUN cat <<'#E'\n#E", HereDocument),
    ("ONBUILD COPY --from=$A b /c", CopySource),
    ("ONBUILD\u{a0}COPY a /b", Head),
    ("ONBUILD COPY\u{a0}a /b", Head),
    ("ONBUILD onbuild RUN a", Trigger),
];

#[test]
fn instruction_in_an_unusual_form_is_unclear() {
    for &(line, expected) in UNUSUAL {
        let text = format!("FROM a\n{line}\n");
        assert_eq!(unclear(&text), [(2, expected)], "{line:?}");
    }
}

#[test]
fn argument_that_chooses_an_image_is_plain() {
    for (text, expected) in [
        ("ARG A=b\\ c\nFROM d\n", Argument),
        ("ARG \"A=b\"\nFROM d\n", Argument),
        ("ARG A=\"b\nFROM d\n", Argument),
        ("ARG A=\"b c\"\nFROM $A\n", ArgumentValue),
        ("ARG A=${B#c}\nFROM ${A:-d}\n", ArgumentValue),
        ("ARG A=\"${x:-'}\"'}\"\nFROM ${A}\n", Argument),
        ("ARG A=\"${x:-'}'}\"\nFROM ${A}\n", ArgumentValue),
        ("ARG A=${B:+\"c\"}\nARG D=e$A\nFROM f:$D\n", ArgumentValue),
        ("ARG A=${HTTPS_PROXY:+h:5000/}\nFROM ${A}b\n", BuilderVariable),
        ("ARG A=linux/$*amd64\nFROM --platform=$A b\n", ArgumentValue),
        ("ARG TARGETARCH=arm64\nFROM --platform=linux/$TARGETARCH a\n", BuilderVariable),
        ("ARG A=a B=${A:-h:5000/b}\nFROM $B\n", SameArgument),
        ("ARG A B=$A\nFROM $B\n", SameArgument),
    ] {
        assert_eq!(unclear(text), [(1, expected)], "{text:?}");
    }
    let script = "ARG A=${HTTP_PROXY:+localhost/}\nFROM b\nRUN <<E\nFROM ${A}c\nE\n";
    let file = Dockerfile::read_as(script, LineRules::WithoutHeredocs);
    let places: Vec<_> = unclear_lines(&file).iter().map(|one| (one.line, one.form)).collect();
    assert_eq!(places, [(1, BuilderVariable)]);
    for text in [
        "ARG A=\"a b\" C='d $e' F=${G#h}\nARG I\nFROM a:$I\n",
        "ARG A=debian T=12 S=\"slim\"\nARG F=${A:-x}:$T\nFROM ${F}-${S} AS b\n",
        "ARG A=${A:-b} C=d D=$C\nARG TARGETOS BUILDARCH=x\nFROM $A-$TARGETOS\n",
        "ARG A='debian'\nFROM $A\nARG P=\"a\\ b\"\nENV Q ${P%%c} R\n",
    ] {
        assert_eq!(unclear(text), [], "{text:?}");
    }
}

#[test]
fn ordinary_dockerfiles_are_plain() {
    for text in [
        "# syntax=docker/dockerfile:1\n# check=skip=all;error=true\n# Größe → é, escape=no\nFROM a\n",
        "\u{feff}# A comment = no directive\r\n\r\nFROM debian:bookworm-slim AS base\r\nWORKDIR /app\r\n",
        "FROM --platform=$BUILDPLATFORM golang:1.24 AS build\nFROM scratch\nCOPY --from=build /a /b\n",
        "FROM --platform=linux/amd64 ghcr.io/x/y_z:1.2-rc.3@sha256:0123456789abcdef\nUSER 1000:1000\n",
        "FROM a\nRUN echo 'é → ü' \"naïve\u{a0}text\" && printf '\\033[0m\\n' \\\n    # Größe\n  && a\n",
        "FROM a\nRUN apt-get update && apt-get install -y \
         --no-install-recommends \\\n    curl \\\n    git \\\n && rm -rf /var/lib/apt/lists/*\n",
        "FROM a\nRUN --mount=type=cache,target=/root/.cache,id=c-1,sharing=locked \
         --network=none pip install x\n",
        "FROM a\nRUN --mount=type=bind,from=base,source=/x,target=/y,rw --mount=type=secret,id=k \
         true\n",
        "FROM a\nRUN cat > /x <<'EOF' && python3 - <<\"PY_1\" 3<<-B\nfrom é import \"x\"\nEOF\n\
         print(1 << 2)\nPY_1\n\tB\n",
        "FROM a\nRUN cat << EOF > /x\nADD is a word here\nEOF\n",
        "FROM a\nRUN <<EOF bash -e\necho \"${A%%.*}\" \\\n  && echo $((1 << 2))\nEOF\n",
        "FROM a\nRUN grep x <<<\"$A\" && echo $((1<<2)) 'a << b' \"c <<E\" it\\'s \
         ${B:-c} cat<<E\n",
        "FROM a\nRUN [\"bash\", \"-c\", \"cat <<E\\nx\\nE\"]\nRUN [ -f /x ] || echo '[' \"é\"\n",
        "FROM a\nRUN echo ${A##*/} \"${B//x/y}\" $'it\\'s' `date` $(( 1 + 2 )) > /x 2>&1 < /y\n",
        "FROM a\nCOPY . .\nCOPY a b/ c*.txt d?.md [ef].py /app/\n\
         COPY --chown=u:$GID --chmod=u=rwX,go=rX a /b\n",
        "FROM a\nCOPY --link --parents --exclude=**/*.md --exclude=[ab].txt a /b\n\
         COPY \"a/\" '/b/'\n",
        "FROM a\nCOPY $SRC/a ${HOME}/.b,c ${APP:-/app}/x%20(1)#2\n\
         ADD ./a.tar.gz ./b/${V}.tar /c/\nADD a@b=1~+2!& /x\n",
        "FROM a\nCOPY [\"a b (1).txt\", \"$A/c\", \"/d e/\"]\nADD [\"a\", \"/b\"]\n\
         COPY [ \"a\",\t\"/b\" ]\n",
        "FROM a\nCOPY <<EOF /x\n$A\nEOF\nCOPY --chmod=755 <<-\"A\" <<B /y/\n\tz\n\tA\nB\n",
        "FROM a\nENV A=\"b c\" D='e' F=g\\ h\nENV PATH /x:$PATH\nLABEL a.b=\"é → ü\" c=d\n\
         EXPOSE 80/tcp 443\n",
        "FROM a\nCMD [\"sh\", \"-c\", \"echo \\\"$A\\\"\"]\nENTRYPOINT exec x \"$@\"\n\
         SHELL [\"/bin/bash\", \"-c\"]\nVOLUME /x\n",
        "FROM a\nHEALTHCHECK --interval=5s --start-period=1m CMD curl -f \
         http://localhost/ || exit 1\nSTOPSIGNAL SIGTERM\n",
        "FROM a\nONBUILD COPY package.json /app/\nONBUILD RUN npm install é\nONBUILD ENV A $B\n\
         MAINTAINER É <a@b>\n",
        "FROM a AS A-1_b.c\nCOPY --chown=from:from --from=a--from from /from\n",
        "from a as b\ncopy --from=b x /y\nrun true\n",
        "FROM\ta\r\nRUN\tb \\\r\n\r\n  # c\r\n\t&& d \\ \t\r\n && e\r\nCOPY\t[ \"a\" ,\t\"/b\" ]\r\n",
        "FROM a\nHEALTHCHECK NONE\nWORKDIR \"$HOME/x y\"\nVOLUME [ \"/a\", \"/b\" ]\nENV A=${A:-\"b c\"} \\\n  \
         B='d'\nLABEL a=\"b \\\n  c\" d.e=f\nARG C=${D:-e}\nADD a.tar.gz /\nSHELL [ \"bash\" , \"-c\" ]\n",
        "#!/usr/bin/env -S docker build -f\n# escape = \\ \nFROM a\nLABEL a=\u{82}\n",
        "ARG A=b\nFROM \"debian:12\"\nFROM 'debian:12' AS b\nFROM \"$A\":\"${A}\"\n\
         FROM debian:\"$A\"''\nFROM --platform=\"linux/$TARGETARCH\" a\n",
        "ARG A\nARG B=${A:+-$A}\nFROM a${A:+-$A}$B:${B:-c-${A}-$TARGETARCH}\n",
        "FROM a\nCOPY --chown=\"${U}:${G}\" --chmod='755' a \"${H}\"/.b\nADD a \"$H\"/b/'c'\n",
        "FROM a\nCOPY [\"a.csproj\", \"\"]\nCOPY [^p]*.conf {{a}}/b.txt /x/\nCOPY \"\" *.py '' ./\n",
        "FROM a\nCOPY 產生語句.py bua\u{30b}.txt ./\nADD [\"naïve.txt\", \"$A/é\"]\n",
        "FROM a\nADD <<E-1 /x\n1\nE-1\nCOPY <<a.txt <<'b.txt' /y/\na.txt\nb.txt\n\
         RUN cat <<-E.1 > /x\nE.1\n",
        "FROM a\nENV A=<< B=\"<<c>>\"\nLABEL a=<<E\nCMD cat <<E\nARG C=<< D=e\n",
        "FROM a\nRUN pecl install x <<'' && y <<-\"\"\n",
        "FROM a\nRUN read -r x <<< \"${A%%.*}\" && y=(${B[@]}) && z <<<'it'\n",
    ] {
        assert_eq!(unclear(text), [], "{text:?}");
    }
}

#[test]
fn line_of_a_script_is_unclear_only_with_flags_variables_or_a_list() {
    let forms = |line: &str| {
        let file = Dockerfile::read(&format!("FROM a\n{line}\n"));
        unclear_lines(&file).into_iter().map(|place| place.form).collect::<Vec<_>>()
    };
    for (line, expected) in [
        ("COPY --chown=\u{e0}--from=h/x /a /b", Flag),
        ("COPY --fr\\om=h/x /a /b", Flag),
        ("COPY --chown=10.0.0.1:5000/x--from /a /b", Flag),
        ("copy --chown--from=10.0.0.1:5000/x /a /b", Flag),
        ("COPY --chown=\"10.0.0.1:5000/x--from\" /a /b", Flag),
        ("COPY --chown=h/x--fr\"\"om /a /b", Flag),
        ("COPY --network=\"none\" /a /b", Flag),
        ("COPY --from='h/x' /a /b", Flag),
        ("ONBUILD COPY --from h/x /a /b", Flag),
        ("ADD [\"\\ud800\", \"/x\"]", List),
        ("onbuild onbuild add x /y", Trigger),
        ("RUN --mount=type=bind,target=$X cat /c", Mount),
        ("run --network=host true", Isolation),
        ("RUN --device cuda true", Isolation),
        ("RUN --network=\"host\" true", Isolation),
        ("onbuild run --security=insecure true", Isolation),
        ("ONBUILD RUN --mount=type=bind,target=$X true", Mount),
        ("FROM $1localhost/x", BaseImage),
        ("from ${A-localhost/x}", BaseImage),
        ("FROM ${HTTPS_PROXY:+localhost/}x", BuilderVariable),
        ("FROM --platform=${A-b} c", Flag),
        ("FROM --platform=a --platform=b c", Flag),
        ("from --foo the start", Flag),
        ("FROM -- --platform=a AS b", Flag),
        ("FROM --platform=a -- b", Flag),
        ("FROM -- ${A-localhost/x}", BaseImage),
    ] {
        assert_eq!(forms(line), [expected], "{line:?}");
    }
    for line in [
        "from a.b import (c,",
        "FROM $schema.users u",
        "from ${A:-b} c",
        "FROM -- base table",
        "from -- ${A:-b} c",
        "ADD COLUMN a TEXT DEFAULT 'é' NOT NULL;",
        "run \"x\" <<y",
        "./run.sh --device cuda",
        "yum --security -y update",
        "tool --network=host",
        "mount --mount=$X",
        "tool --from x --name=\"é\"",
        "tool --from-file=x",
        "user --network=host",
        "COPY --chown=\"a\" --chmod='755' b /c",
    ] {
        assert_eq!(forms(line), [], "{line:?}");
    }
}
