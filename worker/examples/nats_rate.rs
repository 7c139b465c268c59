//! Rates of each part of the queue over a server, without workers and coordinators:
//! `cargo run --example nats_rate --features testing -- nats://127.0.0.1:4222 [COUNT]`. What it makes
//! on the server stays there, under the namespace `rate`.
#![expect(clippy::print_stdout, reason = "a program that prints what it measured")]

use std::error::Error;
use std::time::{Duration, Instant};

use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::wire::delivery::{FreeCapacity, MessageToken};
use rollout_protocol::wire::offer::{Offer, SizeClass};
use rollout_protocol::wire::position::ReportPosition;
use rollout_protocol::wire::report::Report;
use rollout_worker::queue::contract::samples;
use rollout_worker::queue::nats::{Nats, NatsDispatch, NatsOptions, NatsSource};
use rollout_worker::queue::traits::{Dispatch as _, WorkSource as _};

const PATIENCE: Duration = Duration::from_secs(10);
const WINDOWS: [usize; 3] = [4, 64, 1024];

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("usage: nats_rate ADDRESS [COUNT]")?;
    let count = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    let mut options = NatsOptions::parse(&address)?;
    options.namespace = "rate".parse()?;
    options.report_stream_bytes = Some(256 * 1024 * 1024);
    let pool = "default".parse()?;
    let coordinator = Nats::connect(options.clone()).await?;
    let dispatch = coordinator.dispatch(&pool, &[SizeClass(0)]).await?;
    let worker = Nats::connect(options).await?;
    let source = worker.source(&pool, "store").await?;
    for window in WINDOWS {
        parts(&dispatch, &source, window, count.min(window * 2000)).await?;
    }
    for window in WINDOWS {
        together(&dispatch, &source, window, count.min(window * 1000)).await?;
    }
    many(&dispatch).await
}

fn offers(run: RunId, count: usize) -> Vec<Offer> {
    let item = |n: usize| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        ItemId::from_bytes(bytes)
    };
    (0..count).map(|n| Offer { run, item: item(n), ..samples::offer(1, 1) }).collect()
}

fn report(offer: &Offer) -> Report {
    Report { run: offer.run, item: offer.item, ..samples::report(1, 1) }
}

fn say(what: &str, window: usize, count: usize, began: Instant) {
    let rate = count as f64 / began.elapsed().as_secs_f64();
    println!("window {window:5}  {what:22} {rate:9.0}/s");
}

/// One after the other.
async fn parts(
    dispatch: &NatsDispatch,
    source: &NatsSource,
    window: usize,
    count: usize,
) -> Outcome {
    let run = RunId::from_bytes(rand::random());
    let offers = offers(run, count);
    let began = Instant::now();
    for chunk in offers.chunks(window) {
        dispatch.offer(chunk).await?;
    }
    say("offer", window, count, began);
    let began = Instant::now();
    let mut pulled = 0;
    while pulled < count {
        let more = source.pull(FreeCapacity::with_slots(window), PATIENCE).await?;
        pulled += more.len();
        let tokens: Vec<MessageToken> = more.iter().map(|delivery| delivery.token).collect();
        source.ack(&tokens).await?;
    }
    say("pull and acknowledge", window, count, began);
    let began = Instant::now();
    let reports: Vec<Report> = offers.iter().map(report).collect();
    for chunk in reports.chunks(window) {
        source.report(chunk.to_vec()).await?;
    }
    say("report", window, count, began);
    let began = Instant::now();
    let (mut read, mut from): (usize, Option<ReportPosition>) = (0, None);
    while read < count {
        let more = dispatch.reports(run, from, window, PATIENCE).await?.reports;
        read += more.len();
        from = more.last().map(|last| last.position).or(from);
    }
    say("read reports", window, count, began);
    if let Some(position) = from {
        dispatch.mark_journaled(run, position).await?;
    }
    Ok(())
}

/// As a run does it: so many at a time, offered, pulled, reported, read, acknowledged.
async fn together(
    dispatch: &NatsDispatch,
    source: &NatsSource,
    window: usize,
    count: usize,
) -> Outcome {
    let run = RunId::from_bytes(rand::random());
    let offers = offers(run, count);
    let began = Instant::now();
    let coordinator = async {
        let (mut offered, mut read, mut from) = (0, 0, None);
        while read < count {
            let until = count.min(read + window);
            if offered < until {
                dispatch.offer(&offers[offered..until]).await?;
                offered = until;
            }
            let more = dispatch.reports(run, from, window, PATIENCE).await?.reports;
            read += more.len();
            if let Some(last) = more.last() {
                from = Some(last.position);
                dispatch.mark_journaled(run, last.position).await?;
            }
        }
        Outcome::Ok(())
    };
    let worker = async {
        let mut done = 0;
        while done < count {
            let more = source.pull(FreeCapacity::with_slots(window), PATIENCE).await?;
            done += more.len();
            let reports = more.iter().map(|delivery| report(&delivery.offer)).collect();
            source.report(reports).await?;
            let tokens: Vec<MessageToken> = more.iter().map(|delivery| delivery.token).collect();
            source.ack(&tokens).await?;
        }
        Outcome::Ok(())
    };
    let (coordinator, worker) = tokio::join!(coordinator, worker);
    coordinator?;
    worker?;
    say("all of it", window, count, began);
    Ok(())
}

/// A thousand at once.
async fn many(dispatch: &NatsDispatch) -> Outcome {
    let run = RunId::from_bytes(rand::random());
    let offers = offers(run, 1000);
    dispatch.offer(&offers).await?;
    let began = Instant::now();
    let listed = dispatch.list(run).await?.len();
    println!("list {listed}: {:?}", began.elapsed());
    let tries: Vec<_> = offers.iter().map(|offer| (offer.item, offer.try_id)).collect();
    let began = Instant::now();
    dispatch.withdraw(run, &tries).await?;
    println!("withdraw {}: {:?}", tries.len(), began.elapsed());
    let left = dispatch.list(run).await?.len();
    println!("left: {left}");
    Ok(())
}
