// Icons as lines on a grid of 24 by 24, in the colour of the text beside them.

import type { ComponentChildren } from "preact";

function Icon({ children, fill = "none" }: { children: ComponentChildren; fill?: string }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" fill={fill} stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      {children}
    </svg>
  );
}

const icon = (path: string) => () => <Icon><path d={path} /></Icon>;

export const SendIcon = icon("M12 19V5M6 11l6-6 6 6");
export const StopIcon = () => <Icon fill="currentColor"><rect x="7" y="7" width="10" height="10" rx="1.5" /></Icon>;
export const PlusIcon = icon("M12 5v14M5 12h14");
export const PenIcon = icon("M4 20h4L19.5 8.5a2.1 2.1 0 0 0-3-3L5 17zM14 7l3 3");
export const NewChatIcon = icon("M12 4H7a3 3 0 0 0-3 3v10a3 3 0 0 0 3 3h10a3 3 0 0 0 3-3v-5M10 14l1-3.5L18 3.6a1.7 1.7 0 0 1 2.4 2.4L13.5 13z");
export const PictureIcon = () => (
  <Icon><rect x="3.5" y="4.5" width="17" height="15" rx="3" /><circle cx="9" cy="10" r="1.6" /><path d="m4.5 17.5 4.5-4 3 2.5 3.5-4 4.5 4.5" /></Icon>
);
export const LinkIcon = icon("M10 14a4 4 0 0 0 5.7 0l3-3A4 4 0 0 0 13 5.3l-1 1M14 10a4 4 0 0 0-5.7 0l-3 3a4 4 0 0 0 5.7 5.7l1-1");
export const SlidersIcon = icon("M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5");
export const TrashIcon = icon("M5 7h14M10 4h4M7 7l.8 11.2A2 2 0 0 0 9.8 20h4.4a2 2 0 0 0 2-1.8L17 7M10.5 11v5M13.5 11v5");
export const CopyIcon = () => <Icon><rect x="9" y="9" width="11" height="11" rx="2.5" /><path d="M5 15a1.5 1.5 0 0 1-1-1.5V6.5A2.5 2.5 0 0 1 6.5 4h7A1.5 1.5 0 0 1 15 5" /></Icon>;
export const CheckIcon = icon("m5 12.5 4.5 4.5L19 7.5");
export const CloseIcon = icon("M6 6l12 12M18 6 6 18");
export const MenuIcon = icon("M4 7h16M4 12h16M4 17h16");
export const RetryIcon = icon("M4.5 12a7.5 7.5 0 1 0 2.5-5.6M7 3v4h4");
export const CodeIcon = icon("m8.5 7-5 5 5 5M15.5 7l5 5-5 5");
export const DownloadIcon = icon("M12 4v11M7 11l5 5 5-5M5 20h14");
export const UploadIcon = icon("M12 16V5M7 9l5-5 5 5M5 20h14");
export const DownIcon = icon("M12 5v14M6 13l6 6 6-6");
export const WarningIcon = icon("M12 9v4.5M12 17v.01M10.3 4.7 3.2 17a2 2 0 0 0 1.7 3h14.2a2 2 0 0 0 1.7-3L13.7 4.7a2 2 0 0 0-3.4 0z");
export const SunIcon = () => <Icon><circle cx="12" cy="12" r="4" /><path d="M12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M5.6 18.4l1.1-1.1M17.3 6.7l1.1-1.1" /></Icon>;
export const MoonIcon = icon("M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z");
export const ScreenIcon = () => <Icon><rect x="3.5" y="4.5" width="17" height="12" rx="2" /><path d="M9 20h6M12 16.5V20" /></Icon>;

/** The mark of mmserve. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="9" />
      <path d="M8 21.5V13a3 3 0 0 1 6 0v5M14 13a3 3 0 0 1 6 0v8.5" />
      <circle cx="24" cy="11.2" r="1.9" />
    </svg>
  );
}
