import "../shared/theme.css";
import "./dashboard.css";
import { render } from "preact";
import { App } from "./App.tsx";
import { follow } from "./feed.ts";

const app = document.getElementById("app");
if (app) {
  app.replaceChildren();
  render(<App />, app);
  void follow();
}
