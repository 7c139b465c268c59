//! Tests of directories with earlier ideas that the user names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::*;
use rollout_protocol::search::NodeId;

#[tokio::test]
async fn user_ideas_hidden_large_or_symlinked_are_left_out() {
    let lab = SearchFixture::with("context_ideas_dirs: [mine, many]");
    let (mine, many) = (lab.path().join("mine"), lab.path().join("many"));
    for (directory, files) in [(&mine, 2), (&many, 1002)] {
        std::fs::create_dir(directory).expect("made");
        for n in 0..files {
            std::fs::write(directory.join(format!("{n:04}.md")), "- An idea").expect("written");
        }
    }
    std::fs::write(mine.join("0000-large.md"), vec![b'x'; 256 * 1024 + 1]).expect("written");
    std::fs::write(mine.join(OsStr::from_bytes(b"\xff.md")), "- An idea").expect("written");
    std::fs::write(mine.join(".hidden"), "- An idea").expect("written");
    std::os::unix::fs::symlink("0000.md", mine.join("link.md")).expect("linked");
    let done = lab.run().await;
    let root = done.node(NodeId(0));
    assert_eq!(root.context_ideas_dirs[..2], ["mine", "many"]);
    let names: Vec<_> = root.context_idea_files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names[..3], ["mine/0000.md", "mine/0001.md", "many/0000.md"]);
    assert_eq!((names.len(), names[names.len() - 1]), (2 + 1000, "many/0999.md"));
}
