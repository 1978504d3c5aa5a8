import { MoonIcon, ScreenIcon, SunIcon } from "./icons.tsx";
import { nextTheme, theme } from "./theme.ts";

const ICONS = { auto: ScreenIcon, light: SunIcon, dark: MoonIcon };
const NAMES = { auto: "as the system", light: "light", dark: "dark" };

export function ThemeButton() {
  const Icon = ICONS[theme.value];
  const label = `Colours: ${NAMES[theme.value]}`;
  return <button type="button" class="icon-button" aria-label={label} title={label} onClick={nextTheme}><Icon /></button>;
}
