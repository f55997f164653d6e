//! The form that sends one message: every option, the receipt, and the same as commands to copy.
//!
//! The form carries an id. A repeated request, for example after a reload, is therefore a duplicate and sends nothing.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::http::StatusCode;
use lisa_core::broker::TopicHandle;
use lisa_core::fields::{Description, Fields as _};
use lisa_core::message::{Headers, MessageId, MessageOptions};
use lisa_producer::http::{problem, standing};
use lisa_producer::{NewMessage, Receipt, SendError};
use lisa_service::http::auth::Scope;
use lisa_service::http::header_name;
use maud::{Markup, html};

use super::Dashboard;
use super::form::{Fields, WITH_PAYLOAD};
use super::inputs::{FormReader, Inputs, Mistakes, is_flag, lines, payload};
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, Level, locked, relative, sign};
use super::text::{part, visible};

/// The options that are not below "More options".
const FIRST: [&str; 4] = ["delay", "deliver_at", "id", "key"];
pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let form = Form::default();
    Ok(page(
        &topic,
        render(&context, &topic, &form, &Mistakes::new(), html! {}),
    ))
}

pub(super) async fn send(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
    body: Body,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let form = Form(Fields::read(body, WITH_PAYLOAD, &dashboard.0.bodies).await?);
    let refuse = |status, mistakes: &Mistakes| Page {
        status,
        ..page(&topic, render(&context, &topic, &form, mistakes, html! {}))
    };
    let message = match form.message() {
        Ok(message) => message,
        Err(mistakes) => return Ok(refuse(StatusCode::UNPROCESSABLE_ENTITY, &mistakes)),
    };
    let name = topic.name();
    let action = dashboard.action(&context, "send").topic(name);
    let action = action.details(message.message_id());
    let sent = dashboard.0.producer.send_message(name, message);
    let sent = action.run(sent, |receipt| receipt.outcome.as_str().to_owned());
    let receipt = match sent.await {
        Ok(receipt) => receipt,
        Err(error) => {
            let mistakes = Mistakes::from([(field_of(&error).to_owned(), error.to_string())]);
            return Ok(refuse(problem(error).code().status(), &mistakes));
        }
    };
    let receipt = match standing(receipt) {
        Ok(receipt) => receipt,
        Err(refused) => {
            let mistakes = Mistakes::from([("id".to_owned(), refused.detail().to_owned())]);
            return Ok(refuse(refused.code().status(), &mistakes));
        }
    };
    dashboard.changed(name).await;
    let done = html! {
        (shown(&context, &topic, &receipt))
        (form.commands(&context, &topic).render("send-commands"))
    };
    Ok(page(
        &topic,
        render(&context, &topic, &form.next(), &Mistakes::new(), done),
    ))
}

fn page(topic: &TopicHandle, body: Markup) -> Page {
    let page = Page::new(Section::Overview, "Send a message", body);
    page.below("Overview", "/")
        .below(topic.name().as_str(), format!("/topics/{}", topic.name()))
}

/// Returns the field that an error is about.
fn field_of(error: &SendError) -> &'static str {
    match error {
        SendError::TooLarge { .. } => "payload",
        SendError::ReplaceConflict { .. } => "replace",
        SendError::Invalid(invalid) if invalid.field == "due" => "delay",
        SendError::Invalid(invalid) => invalid.field,
        _ => "",
    }
}

/// The fields of the form, as typed.
#[derive(Default)]
struct Form(Fields);

impl Form {
    /// Returns the message, or everything that is wrong.
    fn message(&self) -> Result<NewMessage, Mistakes> {
        let mut reader = FormReader::new(&self.0);
        let options = MessageOptions::read_fields(&mut reader);
        let mut headers = Headers::default();
        for (name, value) in lines(&self.0, "headers") {
            if let Err(error) = headers.insert(&name, value) {
                reader.note("headers", error.to_string());
            }
        }
        let once = self.0.text("once").map(str::parse::<MessageId>);
        if let Some(Err(error)) = &once {
            reader.note("", error.to_string());
        }
        if !reader.mistakes.is_empty() {
            return Err(reader.mistakes);
        }
        let message = NewMessage::new(payload(&self.0));
        let message = match (&options.id, once) {
            (None, Some(Ok(once))) => message.id(once),
            _ => message,
        };
        Ok(message.options(options).headers(headers))
    }

    /// Returns the options that were typed.
    fn options(&self) -> impl Iterator<Item = (&'static str, &'static str, &str)> {
        let all = Description::all::<MessageOptions>().into_iter();
        all.filter_map(|option| Some((option.name, option.kind, self.0.text(option.name)?.trim())))
    }

    /// Returns the commands that send the same message, under an id of its own if none was typed.
    fn commands(&self, context: &Context, topic: &TopicHandle) -> Commands {
        let (name, payload) = (topic.name().as_str(), payload(&self.0));
        let mut headers: Vec<_> = self
            .options()
            .map(|(option, _, value)| (header_name(option), value.to_owned()))
            .collect();
        let own = lines(&self.0, "headers");
        headers.extend(own.map(|(name, value)| match name.as_str() {
            "content-type" => (name, value.to_owned()),
            _ => (format!("Lisa-Header-{name}"), value.to_owned()),
        }));
        let path = format!("/v1/topics/{name}/messages");
        let commands = Commands::default().curl_send(context, "Send", path, &headers, &payload);
        // A payload of one hyphen would be read from standard input.
        if payload == "-" {
            return commands;
        }
        let mut words = vec!["send".to_owned(), name.to_owned()];
        words.extend(self.options().map(|(option, kind, value)| {
            let option = option.replace('_', "-");
            match is_flag(kind) {
                true => format!("--{option}"),
                false => format!("--{option}={value}"),
            }
        }));
        let own = lines(&self.0, "headers");
        words.extend(own.map(|(name, value)| format!("--header={name}={value}")));
        if !payload.is_empty() {
            words.extend(["--".to_owned(), payload]);
        }
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        commands.cli(context, "Send", "lisa-producer", &words)
    }

    /// Returns the form for one more message: with the same fields, but for the id.
    fn next(mut self) -> Self {
        self.0.remove("id");
        self.0.remove("once");
        self
    }
}

fn shown(context: &Context, topic: &TopicHandle, receipt: &Receipt) -> Markup {
    let path = format!(
        "/topics/{}/messages/{}",
        topic.name(),
        part(receipt.id.as_str())
    );
    html! {
        section #receipt .card role="status" aria-labelledby="receipt-title" {
            h2 #receipt-title { (sign(Level::Ok)) " Redis has the message" }
            dl.pairs {
                div { dt { "Id" } dd.mono { a href=(context.link(path)) { (visible(receipt.id.as_str())) } } }
                div { dt { "Outcome" } dd { (receipt.outcome.as_str()) } }
                div { dt { "Due" } dd { @match receipt.due { Some(due) => (relative(due, context.now)), None => "no longer waiting" } } }
                div { dt { "Durability" } dd { (receipt.durability.to_string()) } }
                @if let Some(end) = receipt.ended { div { dt { "Ended" } dd { (end.as_str()) } } }
            }
        }
    }
}

fn render(
    context: &Context,
    topic: &TopicHandle,
    form: &Form,
    mistakes: &Mistakes,
    done: Markup,
) -> Markup {
    let name = topic.name();
    let all = Description::all::<MessageOptions>();
    let (first, more): (Vec<_>, Vec<_>) =
        all.iter().partition(|option| FIRST.contains(&option.name));
    let once = form
        .0
        .text("once")
        .map_or_else(|| MessageId::generate().to_string(), str::to_owned);
    let inputs = Inputs {
        prefix: "send",
        form: &form.0,
        mistakes,
    };
    let is_used = |option: &&Description| inputs.is_used(option.name);
    html! {
        (done)
        form.card.ask.fields method="post" action=(context.link(format!("/topics/{name}/send"))) {
            (inputs.banner("Nothing was sent. Correct what is marked below."))
            input type="hidden" name="once" value=(once);
            (inputs.payload())
            (inputs.headers())
            @for option in first { (inputs.input(option)) }
            details #send-more open[more.iter().any(is_used)] {
                summary { "More options" }
                @for option in &more { (inputs.input(option)) }
            }
            div.buttons {
                @if context.viewer.can(Scope::Send) { button.primary { "Send" } } @else { (locked("Send", Scope::Send)) }
                a.button.plain href=(context.link(format!("/topics/{name}"))) { "Back" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Form {
        Form(Fields::parse(text.as_bytes()))
    }

    #[test]
    fn each_bad_field_is_named_with_its_mistake() {
        let form =
            form("delay=90&deliver_at=2027-01-01T00:00:00Z&priority=x&headers=a+b%3A+c&once=m");
        let mistakes = form.message().unwrap_err();
        let fields: Vec<_> = mistakes.keys().map(String::as_str).collect();
        assert_eq!(fields, ["delay", "headers", "priority"]);
        let both = super::tests::form("delay=90s&deliver_at=2027-01-01T00:00:00Z");
        let mistake = both.message().unwrap_err();
        assert_eq!(mistake["deliver_at"], "cannot be combined with Delay");
    }

    #[test]
    fn a_form_keeps_its_id_until_it_is_sent() {
        let kept = form("payload=a%0D%0Ab&once=twice");
        let message = kept.message().unwrap();
        assert_eq!(message.message_id().as_str(), "twice");
        assert_eq!(payload(&kept.0), "a\nb");
        let typed = form("id=mine&once=twice").message().unwrap();
        assert_eq!(typed.message_id().as_str(), "mine");
        assert_eq!(kept.next().0.text("once"), None);
    }
}
