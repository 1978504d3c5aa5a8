import "../shared/theme.css";
import "./chat.css";
import { render } from "preact";
import { App } from "./App.tsx";
import { start } from "./state.ts";

const app = document.getElementById("app");
if (app) {
  app.replaceChildren();
  render(<App />, app);
  void start();
}
