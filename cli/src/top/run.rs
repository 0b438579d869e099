//! The terminal: frames, keys, and saving and restoring of its state.
//!
//! The terminal is restored whichever way the display ends: by a key, a signal, an error or a
//! panic.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use lotus_benchmarks::stream::StandardOutput;
use lotus_fabric::env::Env;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::draw::{self, Choices};
use super::model::Watched;
use super::model::view::View;

/// Width of a printed frame.
const WIDTH: u16 = 100;
/// Longest wait for a key before the next frame.
const REDRAW: Duration = Duration::from_millis(100);

/// Shows the watched target: until the user leaves, or once, when enough is known or after
/// `once_within`.
///
/// # Errors
/// A sentence: the terminal or the standard output cannot be used.
pub fn run<W: Watched>(
    watched: W,
    news: &Receiver<W::News>,
    env: &Env,
    once_within: Option<Duration>,
) -> Result<(), String> {
    match once_within {
        Some(patience) => once(watched, news, env, patience),
        None => live(watched, news, env).map_err(|error| format!("the terminal fails: {error}")),
    }
}

fn once<W: Watched>(
    mut watched: W,
    news: &Receiver<W::News>,
    env: &Env,
    patience: Duration,
) -> Result<(), String> {
    let deadline = env.now().after(patience);
    while !watched.is_complete() {
        match news.recv_timeout(deadline.since(env.now())) {
            Ok(told) => watched.take(told),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    watched.tick(env.now());
    let view = watched.view(env.now());
    if let Some(why) = nothing(&view) {
        return Err(why);
    }
    let written = StandardOutput.write_all(draw::text(&view, WIDTH).as_bytes());
    written.map_err(|error| format!("cannot write: {error}"))
}

/// Reason why no frame can be printed.
fn nothing(view: &View) -> Option<String> {
    match view {
        View::Bench(view) if view.what.is_empty() => {
            let silent = || "nothing is shown there".to_owned();
            Some(format!("{}: {}", view.title, view.ended.clone().unwrap_or_else(silent)))
        }
        _ => None,
    }
}

/// A terminal in raw mode, with the previous screen saved. Dropping the value restores both; so
/// does a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        Ok(Self(ratatui::try_init()?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
        let _ = ratatui::try_restore();
    }
}

fn live<W: Watched>(mut watched: W, news: &Receiver<W::News>, env: &Env) -> io::Result<()> {
    let told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&told_to_end))?;
    }
    let mut screen = Screen::open()?;
    let mut choices = Choices::default();
    let mut shown = watched.view(env.now());
    while !told_to_end.load(Ordering::Relaxed) {
        take_all(&mut watched, news);
        watched.tick(env.now());
        if !choices.paused {
            shown = watched.view(env.now());
        }
        let view = sorted(&shown, &choices);
        screen.0.draw(|frame| {
            let area = frame.area();
            draw::frame(&view, &choices, area, frame.buffer_mut());
        })?;
        if event::poll(REDRAW)?
            && let Event::Key(key) = event::read()?
        {
            match press(key, &mut choices) {
                Goes::On => {}
                Goes::Anew => screen.0.clear()?,
                Goes::Leave => return Ok(()),
            }
        }
    }
    Ok(())
}

/// Takes in all arrived news. Gatherers that have ended send no more news.
fn take_all<W: Watched>(watched: &mut W, news: &Receiver<W::News>) {
    loop {
        match news.try_recv() {
            Ok(told) => watched.take(told),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
        }
    }
}

#[cfg_attr(not(feature = "tcp"), expect(unused_variables, reason = "benchmarks have no nodes"))]
fn sorted(view: &View, choices: &Choices) -> View {
    let mut view = view.clone();
    match &mut view {
        #[cfg(feature = "tcp")]
        View::Cluster(view) => view.sort(choices.sort, choices.backwards),
        View::Bench(_) => {}
    }
    view
}

/// Whether the display continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goes {
    On,
    /// Continue with every cell redrawn, in case another program has written to the terminal.
    Anew,
    Leave,
}

/// Handles a key.
fn press(key: KeyEvent, choices: &mut Choices) -> Goes {
    if key.kind == KeyEventKind::Release {
        return Goes::On;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Goes::Leave,
        KeyCode::Char('l') if key.modifiers.contains(KeyModifiers::CONTROL) => return Goes::Anew,
        KeyCode::Esc if choices.help => choices.help = false,
        KeyCode::Char('q') | KeyCode::Esc => return Goes::Leave,
        KeyCode::Char('s') => choices.sort = choices.sort.next(),
        KeyCode::Char('r') => choices.backwards = !choices.backwards,
        KeyCode::Char('p' | ' ') => choices.paused = !choices.paused,
        KeyCode::Char('?' | 'h') => choices.help = !choices.help,
        _ => {}
    }
    Goes::On
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::view::SortBy;

    #[test]
    fn keys_do_what_the_help_says() {
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        let mut choices = Choices::default();
        let mut type_in = |text: &str| {
            text.chars().for_each(|letter| {
                assert_eq!(press(key(KeyCode::Char(letter)), &mut choices), Goes::On, "{letter}");
            });
            choices
        };
        assert_eq!(type_in("ss").sort, SortBy::Committed);
        assert_eq!(type_in("ssss").sort, SortBy::Name, "after the last comes the first");
        assert!(type_in("r").backwards && !type_in("r").backwards);
        assert!(type_in("p").paused && !type_in(" ").paused);
        assert!(type_in("?").help);
        assert_eq!(type_in("xc").sort, SortBy::Name);
        let mut helped = Choices { help: true, ..Choices::default() };
        assert_eq!(press(key(KeyCode::Esc), &mut helped), Goes::On);
        assert!(!helped.help, "it closes the help first");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let control_l = KeyEvent::new(KeyCode::Char('l'), KeyModifiers::CONTROL);
        assert_eq!(press(control_l, &mut helped), Goes::Anew);
        for leaving in [key(KeyCode::Esc), key(KeyCode::Char('q')), control_c] {
            assert_eq!(press(leaving, &mut Choices::default()), Goes::Leave);
        }
    }
}
