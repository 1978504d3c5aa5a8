// What an empty conversation shows.

import { Mark, PictureIcon } from "../shared/icons.tsx";
import { server, serverError, askServer } from "./state.ts";

export function Welcome() {
  return (
    <div class="welcome">
      <Mark />
      <h1>{server.value?.max_images === null ? "Ask a question" : "Ask about a picture"}</h1>
      {serverError.value ? (
        <p class="ending failed">{serverError.value} <button type="button" class="quiet" onClick={() => void askServer()}>Try again</button></p>
      ) : (
        <p>{server.value ? <>Answers come from <b>{server.value.model}</b>, on this server.</> : "Asking the server…"}</p>
      )}
      {server.value?.max_images !== null && (
        <p class="ways"><PictureIcon />Paste a screenshot, drop files anywhere on this page, or give a URL.</p>
      )}
    </div>
  );
}
