/* Every page: theme, ages, live refresh, keys. */
import { startAges } from "./ages.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startTheme } from "./themes.js";

startTheme();
startLive();
startAges();
startKeys();
